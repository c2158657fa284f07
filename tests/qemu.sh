# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2154
# Sourced after scripts/say.sh by scripts that set top, the tree, and tests, a list: boot a kernel with an
# initramfs in QEMU and learn how it ended.
#
# A guest gets three serial lines, each a file in vm_dir: console.log, tests.log and verdict. Only a line
# "NONCE STATUS" in verdict counts as an end; silence, a panic or a time-out is a failure.

vm_dir=        # where this boot's files go
vm_accel=      # tcg, kvm or icount
vm_accel_why=  # in words, for people
vm_pid=
vm_status=     # after vm_finish: 0, or how many tests and checks failed

vm_stop() { # end the guest that we started, and nothing else
	[ -z "$vm_pid" ] || kill "$vm_pid" 2>/dev/null || true
}

# Without KVM, QEMU before 8.1 can lose a kernel's patch of its own code when two CPUs run, and the guest then
# hangs for ever: one in some ten times that a static key in the scheduler is switched.
vm_qemu_is_good() {
	local version
	version=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p')
	[ -n "$version" ] && printf '8.1\n%s\n' "$version" | sort -CV
}

vm_machine_arguments() {
	case $vm_accel in
	# shift=0: one instruction is one nanosecond; sleep=off: idle time passes at once.
	icount) echo "-accel tcg,thread=single -icount shift=0,sleep=off -smp 1" ;;
	kvm) echo "-accel kvm -smp $VM_CPUS" ;;
	tcg) echo "-accel tcg,thread=multi -smp $VM_CPUS" ;;
	esac
}

# A disk slow enough that reading it is waiting for it.
vm_slow_disk() {
	rm -f "$vm_dir"/disk.img
	truncate -s 64M "$vm_dir"/disk.img
	PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F "$vm_dir"/disk.img
	printf '%s ' -drive "if=none,id=disk,format=raw,file=$vm_dir/disk.img,throttling.iops-total=${VM_DISK_IOPS:-200}" \
		-device virtio-blk-pci,drive=disk,serial=csf-disk
}

vm_disks() { # and a raw disk that carries the guest's /out home
	[ "$vm_accel" = icount ] || vm_slow_disk # icount lies about disk time
	rm -f "$vm_dir"/out.img
	truncate -s 64M "$vm_dir"/out.img
	echo "-drive if=none,id=out,format=raw,file=$vm_dir/out.img -device virtio-blk-pci,drive=out,serial=csf-out"
}

vm_check_settings() { # of the environment
	[[ ${VM_TIMEOUT:=600} =~ ^[1-9][0-9]*$ ]] || usage_error "VM_TIMEOUT is '$VM_TIMEOUT', not a number of seconds"
	[[ ${VM_CPUS:=2} =~ ^[1-9][0-9]*$ ]] || usage_error "VM_CPUS is '$VM_CPUS', not a number of CPUs"
	[[ ${VM_DEBUG:=1} =~ ^[01]$ ]] || usage_error "VM_DEBUG is '$VM_DEBUG' but can be 0 or 1"
	[[ ${ACCEL:-tcg} =~ ^(kvm|tcg)$ ]] || usage_error "ACCEL is '$ACCEL' but can be kvm or tcg"
	[[ ${ICOUNT:=0} =~ ^[01]$ ]] || usage_error "ICOUNT is '$ICOUNT' but can be 0 or 1"
}

vm_check_tests() { # of $tests: is there each?
	local test
	for test in $tests; do
		case $test in
		bench | demo) [ "$test" = "$tests" ] || usage_error "'$test' runs alone" ;;
		*) [ -f "$top/tests/t_$test.c" ] || [ -f "$top/tests/$test.sh" ] ||
			usage_error "there is no test '$test'; tests are:" \
				"$(make -s --no-print-directory -C "$top" list-tests)" ;;
		esac
	done
}

vm_build() { # WHAT COMMAND...
	progress "building $1" "$vm_dir"/build.log "${@:2}" && return
	printf 'not ok building %s\nRESULT 100\n' "$1"
	exit 1
}

vm_targets() { # for make: what the tests in $tests need, so that somebody's unfinished test stops no other
	local test
	echo tests
	for test in $tests; do
		case $test in
		tools) echo tools examples ;;
		demo | lab) echo examples ;;
		bench) echo bench-programs ;;
		harness/warn | harness/leak) echo harness-modules ;;
		esac
	done
}

vm_kernel_arguments() { # DEBUG_ARGUMENTS: those of them that this run wants
	printf 'log_buf_len=8M random.trust_cpu=on nokaslr '
	[ "$VM_DEBUG" = 0 ] || printf 'panic_on_warn=1 oops=panic %s ' "$1"
	[ "$vm_accel" != icount ] || printf 'tsc=reliable '
	printf '%s' "${APPEND:-}"
}

vm_tsc_reliable() { # KERNEL_ARGUMENTS
	case " $1 " in
	*' tsc=reliable '*) echo 1 ;;
	*) echo 0 ;;
	esac
}

vm_start() { # KERNEL INITRAMFS|'' TIMEOUT KERNEL_ARGUMENTS: in the background, its pid in vm_pid
	local cpu=max
	[ "$vm_accel" != kvm ] || cpu=host,migratable=off # shows invtsc where the host has it
	rm -f "$vm_dir"/console.log "$vm_dir"/tests.log "$vm_dir"/verdict
	: >"$vm_dir"/tests.log
	# shellcheck disable=SC2046 # lists of words
	timeout -k 5 "$3" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
		-cpu "$cpu" -m "${VM_MEMORY:-1G}" $(vm_machine_arguments) $(vm_disks) \
		-kernel "$1" ${2:+-initrd "$2"} -append "console=ttyS0,115200 panic=-1 $4" \
		-chardev file,id=c0,path="$vm_dir"/console.log -serial chardev:c0 \
		-chardev file,id=c1,path="$vm_dir"/tests.log -serial chardev:c1 \
		-chardev file,id=c2,path="$vm_dir"/verdict -serial chardev:c2 \
		</dev/null >"$vm_dir"/qemu.log 2>&1 &
	vm_pid=$!
}

vm_wait() { # wait for the guest; the exit status is timeout's: 124 or 137 if it had to be ended
	local rc=0
	{ wait "$vm_pid"; } 2>/dev/null || rc=$? # 2>: the shell's own word on a QEMU that aborted
	vm_pid=
	return "$rc"
}

# What the tests print, as they print it. A RESULT line of theirs must not look like ours.
vm_show_output() { tail -n +1 -f --pid="$vm_pid" "$vm_dir"/tests.log | sed -u 's/^RESULT/test says: &/'; }

vm_finish() { # NONCE GUEST: show the output, wait, set vm_status to the verdict or say why there is none
	local rc=0 shower
	vm_show_output &
	shower=$!
	vm_wait || rc=$?
	wait "$shower" || true
	vm_status=$(vm_verdict "$1")
	[ -z "$vm_status" ] || return 0
	vm_status=100
	echo "not ok $2: $(vm_post_mortem "$rc")"
	vm_oops_tail
}

vm_verdict() { # NONCE: print the status that the guest sent, or nothing
	sed -n "s/^$1 \([0-9]\{1,\}\)\r*\$/\1/p" "$vm_dir"/verdict 2>/dev/null | tail -n 1
}

# Why there is no verdict, from what is left of the guest.
vm_post_mortem() { # QEMU_STATUS
	case $1 in
	124 | 137) echo "still running after $VM_TIMEOUT s (VM_TIMEOUT)"; return ;;
	esac
	if grep -q 'Kernel panic' "$vm_dir"/console.log 2>/dev/null; then
		echo "the kernel panicked: $(grep -m 1 -o 'Kernel panic.*' "$vm_dir"/console.log | tr -d '\r')"
	elif [ -s "$vm_dir"/qemu.log ]; then
		echo "QEMU: $(tail -n 1 "$vm_dir"/qemu.log)"
	else
		echo "it ended without a verdict"
	fi
}

vm_oops_tail() { # what the kernel said, from its first complaint on
	local log=$vm_dir/console.log
	[ -s "$log" ] || return 0
	echo "--- $log"
	if grep -qE "$vm_complaint" "$log"; then
		sed -nE "/$vm_complaint/,\$p" "$log" | head -n 80
	else
		tail -n 20 "$log"
	fi | tr -d '\r'
	echo "---"
}
vm_complaint='cut here|WARNING:|BUG|Oops|Kernel panic|general protection|INFO: (task|rcu)|KFENCE'

# /dev/kvm may be there and still hang every guest, so boot one. The answer holds until the host reboots.
vm_choose_accel() { # KERNEL CACHE_DIR
	local cache
	if [ "$ICOUNT" = 1 ]; then
		vm_accel=icount vm_accel_why="TCG counting instructions, 1 CPU"
		return
	elif [ -n "${ACCEL:-}" ]; then
		vm_accel=$ACCEL vm_accel_why="$ACCEL as told, $VM_CPUS CPUs"
		return
	fi
	cache=$2/kvm.$(cat /proc/sys/kernel/random/boot_id)
	if [ ! -e "$cache" ]; then
		mkdir -p "$2"
		vm_probe_kvm "$1" >"$cache.$$"
		mv "$cache.$$" "$cache"
	fi
	read -r vm_accel vm_accel_why <"$cache"
	[ "$vm_accel" = kvm ] || vm_qemu_is_good ||
		note "$me: this QEMU is older than 8.1 and may hang; sudo scripts/setup.sh demo installs a newer one"
	vm_accel_why="$vm_accel_why, $VM_CPUS CPUs"
}

vm_probe_kvm() { # KERNEL: a kernel that gets as far as missing its root file system is well
	[ -e /dev/kvm ] || { echo "tcg TCG as there is no /dev/kvm"; return; }
	[ -w /dev/kvm ] || { echo "tcg TCG as /dev/kvm may not be opened"; return; }
	vm_accel=kvm
	vm_start "$1" "" 15 "root=/dev/none"
	vm_wait || true
	if grep -q 'Unable to mount root fs' "$vm_dir"/console.log 2>/dev/null; then
		echo "kvm KVM"
	else
		echo "tcg TCG as a guest does not boot with KVM here"
	fi
}
