#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Inside a throw-away guest, whichever made it: load the module, run tests, take the module out again.
# The exit status is the number of tests and checks that failed, and it is the only verdict: whatever a
# test prints is just output.
#
#	tests/vm-inner.sh TEST...
#
# With CSF_WRITER=bpf the tests run on the BPF service in place of the module, which is not loaded; with
# CSF_WRITER=none there is neither.
#
# TEST is a program build/tests/t_TEST or a script tests/TEST.sh. "bench" and "demo" are not tests but
# run in the same place: bench loads the module itself, to measure without it first.
#
# Never on a machine you care for: it loads the module and tries to break it.

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top" || exit 100
ko=${CSF_KO:-$top/kmod/coarse_stat_fs.ko}
mnt=/sys/kernel/coarse_stat_fs
name=coarse_stat_fs
on_writer=
failed=0

ok() { echo "ok $1"; }
not_ok() { echo "not ok $1"; failed=$((failed + 1)); }
check() { # NAME COMMAND...
	what=$1
	shift
	if "$@"; then ok "$what"; else not_ok "$what"; fi
}

mark() { echo "csf-test: $*" >/dev/kmsg; }

# Whatever the kernel complains of between a mark and now: the usual words, and any line of level error
# or worse. dmesg -r prints <priority> first; low three bits are the level, the rest must be 0 (kernel).
complaints() { # MARK
	[ -z "${CSF_LOG_IS_READ_BY_HOST:-}" ] || return 1 # tests/debug/run.sh knows whose a report is
	dmesg -r | awk -v mark="csf-test: $1" '
		found { print }
		substr($0, length($0) - length(mark) + 1) == mark { found = 1 }
		END { if (!found) print "<0>the log has no mark \"" mark "\" any more" }' | grep -E \
		-e '^<[0-3]>' \
		-e 'WARNING:|BUG|Oops|KFENCE|KASAN|UBSAN|INFO: (task|rcu)|Call Trace|general protection' \
		-e 'lockdep|circular locking|corruption|refcount_t:|refused free|Objects remaining|leaked' \
		-e "$name: .*(refus|leak|busy at exit)"
}

log_is_clean() { # TEST MARK
	found=$(complaints "$2")
	[ -z "$found" ] && return
	not_ok "$1: the kernel complained:"
	echo "$found" | head -n 40 | sed 's/^/# /'
}

references() { cat /sys/module/"$name"/refcnt 2>/dev/null || echo 0; }

# Objects of threads that ended are dropped after an RCU grace period.
references_are() { # NUMBER
	tries=0
	while [ "$(references)" != "$1" ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 100 ] || return
		sleep 0.1
	done
}

run_one() { # TEST
	case $1 in
	serve*) on_writer= ;; # starts services of its own
	esac
	if [ -f "tests/$1.sh" ]; then
		sh "tests/$1.sh"
	elif [ -x "build/tests/t_$1" ]; then
		$on_writer "build/tests/t_$1"
	else
		echo "there is neither tests/$1.sh nor build/tests/t_$1"
		false
	fi
}

run_test() { # TEST
	mark "begin $1"
	before=$(references)
	run_one "$1"
	status=$?
	case $status in
	0) ;;
	77) echo "skip $1" ;;
	*) not_ok "$1: exit status $status" ;;
	esac
	references_are "$before" || not_ok "$1: the module has $(references) references, not $before"
	log_is_clean "$1" "begin $1"
}

is_refused() { ! rmmod "$name" 2>/dev/null; }

load() {
	[ ! -e /sys/module/"$name" ] || { not_ok "$name is loaded already: is this a guest?"; return 1; }
	insmod "$ko" && mount -t $name none $mnt && return
	not_ok "load and mount $ko"
	return 1
}

# A process with the file open keeps the thread's object, with it the module, also when the mount is gone.
unload() {
	check "rmmod is refused while mounted" is_refused
	# shellcheck disable=SC2217 # it need not read: open is enough
	sleep 1000 <"$mnt"/thread-self &
	holder=$!
	sleep 0.2
	check "rmmod is refused while a thread is registered" is_refused
	umount -l "$mnt"
	check "rmmod is refused while a thread is registered, unmounted" is_refused
	kill "$holder"
	wait "$holder" 2>/dev/null
	check "no reference is left" references_are 0
	check "rmmod is accepted" rmmod "$name"
	[ ! -e /sys/module/"$name" ] || not_ok "the module is still there"
	[ ! -e "$mnt" ] || not_ok "$mnt is still there"
}

# Nothing to load, nothing to take out; that nothing is left is a test of its own (t_serve).
tests_on_bpf() { # TEST...
	for test; do
		on_writer="build/csf run --"
		run_test "$test"
	done
}

tests_on_none() { # TEST...
	for test; do
		run_test "$test"
	done
}

tests_on_module() { # TEST...
	load || return
	for test; do
		run_test "$test"
	done
	mark "begin unload"
	unload
	log_is_clean unload "begin unload"
}

# Of debug kernels (tests/debug/). lockdep stops with its first report, or when its tables are full.
watchers() {
	[ ! -e /proc/lockdep_stats ] || check "lockdep has watched to the end" grep -q 'debug_locks: *1$' /proc/lockdep_stats
	[ ! -e /sys/kernel/debug/kcsan ] || sed -n 's/^[a-z_]*: /# kcsan: &/p' /sys/kernel/debug/kcsan
}

tests() { # TEST...
	"tests_on_${CSF_WRITER:-module}" "$@"
	watchers
	[ -z "${CSF_LOG_IS_READ_BY_HOST:-}" ] || return 0
	complaints=$(complaints begin)
	check "the kernel log is clean" [ -z "$complaints" ]
}

demo() {
	load || return
	build/eventloop --demo "${CSF_DISK_DIR:-/tmp}" || failed=$((failed + 1))
	umount $mnt && rmmod $name || failed=$((failed + 1))
}

# A small guest allows few threads; tests want ten thousand.
echo 100000 >/proc/sys/kernel/threads-max
echo 150000 >/proc/sys/kernel/pid_max
# shellcheck disable=SC3045 # one of them: busybox has -u, dash -p
ulimit -u unlimited 2>/dev/null || ulimit -p unlimited 2>/dev/null

mark begin
case ${1:-} in
'') echo "vm-inner.sh: no TEST given" >&2; exit 100 ;;
bench) sh tests/bench/guest.sh || failed=1 ;;
demo) demo ;;
*) tests "$@" ;;
esac
[ $failed -le 99 ] || failed=99
exit $failed
