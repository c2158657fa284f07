#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs as a service in the guest of tests/packages.sh, as root, once a boot: the first boot installs the
# packages, the second finds them at work and removes them. "ok" and "not ok" go to ttyS1; the verdict, the
# nonce and the number of failures, to ttyS2.
set -u
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
here=/packages
stty -F /dev/ttyS1 raw -echo
stty -F /dev/ttyS2 raw -echo
exec </dev/null >/dev/ttyS1 2>&1
read -r nonce <$here/nonce
rm $here/nonce
failed=0
names="coarse-stat-fs coarse-stat-fs-dkms libcoarse-stat-fs-dev"
mount_unit=sys-kernel-coarse_stat_fs.mount

check() { # WHAT COMMAND...
	local what=$1 output
	shift
	if output=$("$@" 2>&1); then
		echo "ok $what"
	else
		echo "not ok $what"
		echo "$output" | tail -n 40 | sed 's/^/# /'
		failed=$((failed + 1))
	fi
}

fails() { ! "$@"; }
loaded() { grep -q '^coarse_stat_fs ' /proc/modules; }
mounted() { grep -q ' /sys/kernel/coarse_stat_fs coarse_stat_fs ' /proc/mounts; }
mount_id() { awk '$5 == "/sys/kernel/coarse_stat_fs" { print $1 }' /proc/self/mountinfo; }
still_mounted() { # a new mount would have another number
	mounted && [ "$(mount_id)" = "$mounted_as" ]
}
as_nobody() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }

booted() { # and nothing that systemd started has failed
	local state
	state=$(systemctl is-system-running --wait)
	[ "$state" = running ] || { echo "$state"; systemctl --failed --no-legend --plain; return 1; }
}

# Names of files that may be there or not for other reasons than ours: what runs now, logs, caches, and the key
# that DKMS makes once.
every_file() {
	find / -xdev \( -path /packages -o -path /run -o -path /tmp -o -path /var/tmp -o -path /var/log -o \
		-path /var/cache -o -path /var/lib/systemd/timers -o -path /root \) -prune -o -print |
		grep -v '^/var/lib/dkms/mok[.]\|^/var/lib/apt/\|^/var/lib/dpkg/lock' | sort
}

users() { cat /etc/passwd /etc/group; }

remember() { # COMMAND: what was there before
	"$1" >$here/before."$1"
}

unchanged() { # COMMAND
	"$1" >$here/after."$1"
	diff $here/before."$1" $here/after."$1"
}

# It sleeps for 25 ms, and says "wall N ms = cpu N + runq N + sleep N ...".
readme_program() { # WRITER
	local output
	output=$(as_nobody $here/use) || return
	echo "$output"
	echo "$output" | awk -v writer="$1" '
		/^writer / { found = $2 == writer }
		/^wall / { wall = $2 + 0; sleep = $11 + 0 }
		END { exit !(found && wall >= 25 && sleep >= 24 && sleep <= wall) }'
}

compile() { # COMPILER FLAG...
	# shellcheck disable=SC2046 # a list
	"$@" -Wall -Wextra -Werror $(pkg-config --cflags coarse_stat_fs) -o $here/use $here/use.c $here/readme.c -pthread
}

install_packages() {
	remember every_file
	remember users
	local start=$SECONDS
	check "apt installs the packages" apt-get install -y -q $here/*.deb
	echo "# in $((SECONDS - start)) s"
	check "DKMS has built the module" sh -c "dkms status coarse_stat_fs | grep ': installed'"
	check "installing loads no module" fails loaded
	check "installing starts no service" fails systemctl is-active csf-serve.socket csf-serve.service
	check "the pages of the manual are there" ls /usr/share/man/man1/csfcat.1.gz \
		/usr/share/man/man3/csf_thread_snap.3.gz /usr/share/man/man5/coarse_stat_fs.5.gz
}

use_module() {
	check "the module is loaded at boot" loaded
	check "and mounted" mounted
	mounted_as=$(mount_id)
	check "by its unit" systemctl is-active $mount_unit
	check "the mount is nosuid, nodev and noexec" grep -q 'coarse_stat_fs coarse_stat_fs.*nosuid,nodev,noexec' /proc/mounts
	check "an unknown mount option is refused" fails mount -t coarse_stat_fs -o nonsense none /mnt
	check "the README's program compiles against the package as C++" compile g++ -x c++
	check "and as C" compile gcc
	check "it reads the module's page" readme_program module
	check "the example compiles" sh -c "gcc -O2 \$(pkg-config --cflags coarse_stat_fs) -o $here/eventloop \
		/usr/share/doc/libcoarse-stat-fs-dev/examples/eventloop.c -pthread"
	check "and runs" as_nobody $here/eventloop
	check "csfcat self" as_nobody csfcat self 20
	check "csfcat cpu" as_nobody csfcat cpu
	check "the package can be installed again" apt-get install -y -q --reinstall $here/coarse-stat-fs-dkms_*.deb
	check "and has the file system mounted meanwhile" still_mounted
	check "the unit unmounts" systemctl stop $mount_unit
	check "the module can be removed" modprobe -r coarse_stat_fs
}

confined() { # by the kernel's word
	local pid
	pid=$(systemctl show -P MainPID csf-serve.service)
	grep -E '^(NoNewPrivs|Seccomp|Cap(Eff|Bnd)):' "/proc/$pid/status"
	grep -q '^NoNewPrivs:.1$' "/proc/$pid/status" && grep -q '^Seccomp:.2$' "/proc/$pid/status" || return
	# PERFMON 38, BPF 39; SYS_ADMIN has been given up by all threads
	! grep -vq '^CapEff:.000000c000000000$' <(grep -h '^CapEff' /proc/"$pid"/task/*/status)
}

use_service() {
	check "without a writer the program says so" fails as_nobody $here/use
	check "the socket is enabled" systemctl enable --now csf-serve.socket
	check "the service waits for a client" fails systemctl is-active csf-serve.service
	check "the program reads a page of the service that systemd starts" readme_program bpf
	check "the service is active" systemctl is-active csf-serve.service
	check "it is confined" confined
	confined
	systemd-analyze security csf-serve.service --no-pager | tail -n 1
	journalctl -u csf-serve.service -o cat -q _COMM=csf
	check "csfcat cpu, from the service" as_nobody csfcat cpu
	check "the service says nothing" test -z "$(journalctl -u csf-serve.service -o cat -q _COMM=csf)"
	check "its package can be installed again" apt-get install -y -q --reinstall $here/coarse-stat-fs_*.deb
	check "and the service is there" readme_program bpf
	check "it stops" systemctl stop csf-serve.service
	check "without failing" test "$(systemctl show -P Result csf-serve.service)" = success
	check "the next client starts it again" readme_program bpf
}

purge() {
	check "the module comes back" sh -c "modprobe coarse_stat_fs && systemctl start $mount_unit"
	check "and is mounted" mounted
	# shellcheck disable=SC2086 # a list
	check "apt purges the packages" apt-get purge -y -q $names
	check "the file system is unmounted" fails mounted
	check "the module is gone" fails loaded
	check "its mount point is gone" fails test -e /sys/kernel/coarse_stat_fs
	check "the socket is gone" fails test -e /run/coarse_stat_fs
	check "the service is gone" fails pgrep -x csf
	check "DKMS knows nothing of it" test -z "$(dkms status coarse_stat_fs)"
	check "no file is left, and none is missing" unchanged every_file
	check "users and groups are what they were" unchanged users
	check "systemd has no unit of ours" sh -c '! systemctl list-units --all --plain --no-legend | grep "csf-serve\|sys-kernel-coarse"'
	check "nothing has failed" booted
}

check "the guest boots" booted
if [ ! -e $here/installed ]; then
	install_packages
	touch $here/installed
else
	use_module
	use_service
	purge
fi
check "the kernel does not complain" sh -c '! dmesg | grep -E "cut here|WARNING:|BUG|Oops|general protection|KFENCE"'
sync
echo "$nonce $failed" >/dev/ttyS2
stty -F /dev/ttyS2 raw # waits until the line has left
systemctl start --no-block poweroff.target # "systemctl poweroff" would ask D-Bus first, which is not here
