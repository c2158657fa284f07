/* SPDX-License-Identifier: GPL-2.0 */
/* A signal handler that runs at a chosen instruction of what is tested, by the CPU's trap flag. */
#ifndef U_STEP_H
#define U_STEP_H

#include "u.h"

#include <signal.h>
#include <ucontext.h>

#define U_TRAP_FLAG 0x100

static volatile long u_steps_left;
static volatile int u_handled;
static void (*u_handler)(void);

U_API void u_on_trap(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = (ucontext_t *)context;
	int saved = errno;

	(void)sig;
	(void)info;
	if (--u_steps_left > 0)
		return;
	u_handled = 1;
	u_handler();
	uc->uc_mcontext.gregs[REG_EFL] &= ~U_TRAP_FLAG;
	errno = saved;
}

U_API void u_step_start(void)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_sigaction = u_on_trap;
	sa.sa_flags = SA_SIGINFO;
	if (sigaction(SIGTRAP, &sa, NULL))
		u_die("sigaction");
}

/* Below the red zone of the caller. */
static inline void u_step_begin(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq %0, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" ::"i"(U_TRAP_FLAG)
			 : "memory", "cc");
}

static inline void u_step_end(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq %0, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" ::"i"(~U_TRAP_FLAG)
			 : "memory", "cc");
}

#endif /* U_STEP_H */
