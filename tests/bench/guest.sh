#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Inside a throw-away guest: measure before the module is loaded, with it, and with registered threads.
# Leaves a flat JSON file in the guest's output directory, bench/icount.json, vm.json (KVM) or tcg.json.
# The exit status is 0 if everything could be measured; run.sh judges the values.
set -e
top=$(cd "$(dirname "$0")/../.." && pwd)
name=coarse_stat_fs
ko=${CSF_KO:-$top/kmod/$name.ko}
out=${CSF_OUT:-/out}/bench
results=$out/results

case ${CSF_ACCEL:-} in
icount) unit=insn json=icount.json ;;
kvm) unit=ns json=vm.json ;;
*) unit=ns json=tcg.json ;;
esac

measure() { # MEASURE...: every one in a process of its own
	for what; do
		"$top"/build/tests/bench_guest $unit "$what" >>"$results"
		tail -n 1 "$results"
	done
}

measure_as() { # NAME MEASURE
	"$top"/build/tests/bench_guest $unit "$2" | sed "s/^[a-z_0-9]*_$unit/$1_$unit/" >>"$results"
	tail -n 1 "$results"
}

# The same with BPF as the writer, where the guest was given a csf.
measure_bpf() {
	[ -x "$top"/build/csf ] || return 0
	export CSF_SOCKET=/tmp/csf-socket
	"$top"/build/csf serve --socket $CSF_SOCKET &
	service=$!
	while [ ! -S $CSF_SOCKET ]; do sleep 1; done
	for pair in switch_base:switch_bpf_unregistered switch_module_registered:switch_bpf_registered \
		thread_snap:bpf_snap open_map:bpf_register; do
		measure_as "${pair#*:}" "${pair%:*}"
	done
	kill $service
	wait $service
}

# A switch beside csf's commands that watch.
measure_watching() { # NAME OPTION...
	[ -x "$top"/build/csf ] || return 0
	as=$1
	shift
	: >/tmp/ready
	"$top"/build/csf "$@" --ready-fd 9 9>/tmp/ready >/dev/null &
	watching=$!
	while [ ! -s /tmp/ready ]; do sleep 1; done
	measure_as "$as" switch_base
	kill $watching
	wait $watching
}

to_json() {
	awk 'BEGIN { printf "{" }
		{ printf "%s\n\t\"%s\": %s", (NR > 1 ? "," : ""), $1, $2 }
		END { printf "\n}\n" }'
}

mkdir -p "$out"
: >"$results"
echo 30000 >/proc/sys/kernel/threads-max # switch_10k makes 10,000 sleepers
echo "# median, least and most of all windows"
measure instruction switch_base
insmod "$ko"
mount -t $name none /sys/kernel/$name
measure switch_module_unregistered switch_module_registered thread_snap cpu_snap open_map switch_10k
sleep 1 # objects of ended threads outlive them by a grace period
umount /sys/kernel/$name
rmmod $name
measure_bpf
measure_watching runqlat_wakeup runqlat
measure_watching runqlat_queue runqlat --from queue
measure_watching migrate migrate
measure_watching cswitch cswitch
to_json <"$results" >"$out/$json"
