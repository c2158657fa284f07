// SPDX-License-Identifier: GPL-2.0
/*
 * The cpu page: what /proc/stat says, in nanoseconds, refreshed while somebody has it open.
 */
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/kcsan-checks.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "csf.h"

#define CSF_PERIOD_MIN_US 1000
#define CSF_PERIOD_MAX_US 1000000

static unsigned int csf_period_us = 10000;

static struct csf_cpu_page *csf_cpu_page; /* what is mapped */
static struct csf_cpu_row *csf_rows; /* gathered here first: short writes, few retries */
static size_t csf_rows_len;

static struct hrtimer csf_timer;
static unsigned int csf_cpu_users; /* open files; under csf_cpu_lock */
static DEFINE_MUTEX(csf_cpu_lock);

/*
 * The CPU counts on while we read, as while /proc/stat is read, and with the same outcome: each
 * number is whole, all are of about one moment, idle times can step back a little. To KCSAN these
 * are races; so they are, the kernel's.
 */
static void csf_gather_cpu(struct csf_cpu_row *row, int cpu)
{
	struct kernel_cpustat stat;
	int i;

	kcsan_disable_current();
	csf_kcpustat_fetch(&stat, cpu);
	row->user_ns = stat.cpustat[CPUTIME_USER];
	row->nice_ns = stat.cpustat[CPUTIME_NICE];
	row->system_ns = stat.cpustat[CPUTIME_SYSTEM];
	row->idle_ns = stat.cpustat[CPUTIME_IDLE];
	row->iowait_ns = stat.cpustat[CPUTIME_IOWAIT];
	row->irq_ns = stat.cpustat[CPUTIME_IRQ];
	row->softirq_ns = stat.cpustat[CPUTIME_SOFTIRQ];
	row->steal_ns = stat.cpustat[CPUTIME_STEAL];
	row->guest_ns = stat.cpustat[CPUTIME_GUEST];
	row->guest_nice_ns = stat.cpustat[CPUTIME_GUEST_NICE];
	row->irqs = kstat_cpu_irqs_sum(cpu);
	row->softirqs = 0;
	for (i = 0; i < NR_SOFTIRQS; i++)
		row->softirqs += kstat_softirqs_cpu(i, cpu);
	kcsan_enable_current();
	row->online = cpu_online(cpu);
}

static void csf_add_row(struct csf_cpu_row *sum, const struct csf_cpu_row *row)
{
	sum->user_ns += row->user_ns;
	sum->nice_ns += row->nice_ns;
	sum->system_ns += row->system_ns;
	sum->idle_ns += row->idle_ns;
	sum->iowait_ns += row->iowait_ns;
	sum->irq_ns += row->irq_ns;
	sum->softirq_ns += row->softirq_ns;
	sum->steal_ns += row->steal_ns;
	sum->guest_ns += row->guest_ns;
	sum->guest_nice_ns += row->guest_nice_ns;
	sum->irqs += row->irqs;
	sum->softirqs += row->softirqs;
	sum->online += row->online;
}

/* Runs in one place at a time: as the work item, or in open() before that is first queued. */
static void csf_cpu_update(struct work_struct *work)
{
	u64 tsc = rdtsc(), mono = ktime_get_ns();
	struct csf_cpu_page *page = csf_cpu_page;
	int cpu;

	memset(&csf_rows[0], 0, sizeof(csf_rows[0]));
	csf_rows[0].cpu = CSF_CPU_ALL;
	for_each_possible_cpu(cpu) {
		csf_gather_cpu(&csf_rows[cpu + 1], cpu);
		csf_add_row(&csf_rows[0], &csf_rows[cpu + 1]);
	}

	/* readers spin meanwhile */
	preempt_disable();
	csf_write_begin(&page->seq);
	memcpy(page + 1, csf_rows, csf_rows_len);
	page->update_tsc = tsc;
	page->update_mono_ns = mono;
	page->period_us = READ_ONCE(csf_period_us);
	page->hdr.flags = csf_flags();
	csf_write_end(&page->seq);
	preempt_enable();
}

static DECLARE_WORK(csf_cpu_work, csf_cpu_update);

static ktime_t csf_period(void)
{
	return ns_to_ktime((u64)READ_ONCE(csf_period_us) * NSEC_PER_USEC);
}

/* The jiffies of a delayed work would be coarser than the shortest period. */
static enum hrtimer_restart csf_cpu_tick(struct hrtimer *timer)
{
	queue_work(system_highpri_wq, &csf_cpu_work);
	hrtimer_forward_now(timer, csf_period());
	return HRTIMER_RESTART;
}

/* Not beside csf_cpu_tick(), which moves a timer that is in no queue. */
static void csf_timer_start(void)
{
	lockdep_assert_held(&csf_cpu_lock);
	hrtimer_cancel(&csf_timer);
	hrtimer_start(&csf_timer, csf_period(), HRTIMER_MODE_REL);
}

static int csf_cpu_open(struct inode *inode, struct file *file)
{
	int err = csf_open_check(file);

	if (err)
		return err;
	mutex_lock(&csf_cpu_lock);
	if (!csf_cpu_users++) {
		csf_cpu_update(NULL);
		csf_timer_start();
	}
	mutex_unlock(&csf_cpu_lock);
	return 0;
}

static int csf_cpu_release(struct inode *inode, struct file *file)
{
	mutex_lock(&csf_cpu_lock);
	if (!--csf_cpu_users) {
		hrtimer_cancel(&csf_timer);
		cancel_work_sync(&csf_cpu_work);
	}
	mutex_unlock(&csf_cpu_lock);
	return 0;
}

static int csf_cpu_mmap(struct file *file, struct vm_area_struct *vma)
{
	int err = csf_mmap_check(vma, csf_cpu_len());

	return err ?: remap_vmalloc_range(vma, csf_cpu_page, 0);
}

const struct file_operations csf_cpu_fops = {
	.owner = THIS_MODULE,
	.open = csf_cpu_open,
	.release = csf_cpu_release,
	.mmap = csf_cpu_mmap,
	.llseek = noop_llseek,
};

static int csf_period_set(const char *val, const struct kernel_param *kp)
{
	unsigned int us;

	if (kstrtouint(val, 0, &us) || us < CSF_PERIOD_MIN_US || us > CSF_PERIOD_MAX_US)
		return -EINVAL;
	mutex_lock(&csf_cpu_lock);
	WRITE_ONCE(csf_period_us, us);
	if (csf_cpu_users)
		csf_timer_start();
	mutex_unlock(&csf_cpu_lock);
	return 0;
}

static const struct kernel_param_ops csf_period_ops = {
	.set = csf_period_set,
	.get = param_get_uint,
};
module_param_cb(period_us, &csf_period_ops, &csf_period_us, 0644);
MODULE_PARM_DESC(period_us, "microseconds between updates of the cpu page, 1000 to 1000000");

/* bytes of the page, all rows included */
size_t csf_cpu_len(void)
{
	return sizeof(*csf_cpu_page) + csf_rows_len;
}

int csf_cpu_init(void)
{
	u32 nr_rows = nr_cpu_ids + 1, i;

	csf_rows_len = nr_rows * sizeof(*csf_rows);
	csf_rows = kvzalloc(csf_rows_len, GFP_KERNEL);
	if (!csf_rows)
		return -ENOMEM;
	for (i = 0; i < nr_rows; i++)
		csf_rows[i].cpu = i - 1;
	csf_cpu_page = vmalloc_user(csf_cpu_len());
	if (!csf_cpu_page) {
		kvfree(csf_rows);
		return -ENOMEM;
	}
	csf_hdr_init(&csf_cpu_page->hdr, CSF_KIND_CPU, csf_cpu_len());
	csf_cpu_page->nr_rows = nr_rows;
	csf_cpu_page->row_size = sizeof(*csf_rows);
	csf_cpu_page->rows_offset = sizeof(*csf_cpu_page);
	csf_cpu_page->period_us = csf_period_us;
	csf_cpu_page->resolution_ns = TICK_NSEC; /* better on CPUs with nohz_full */
	hrtimer_setup(&csf_timer, csf_cpu_tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	return 0;
}

void csf_cpu_exit(void)
{
	/* no file is open: the timer and the work have been cancelled */
	vfree(csf_cpu_page);
	kvfree(csf_rows);
}
