# SPDX-License-Identifier: GPL-2.0
# The ## comments are what `make help` prints. Nothing but what is named install does install anything.

# What would take a name apart where a shell reads it; scripts/say.sh refuses the same.
BREAKING := ' " ` \ $$ ; & | < > ( )
breaks = $(strip $(word 2,-$(1)-) $(foreach c,$(BREAKING) $(2),$(findstring $(c),$(1))))
$(if $(call breaks,$(CURDIR)),$(error nothing builds in '$(CURDIR)': \
	move the directory to a path without blanks, quotes and what a shell takes apart))

VERSION := $(shell cat VERSION)
KREL ?= $(shell uname -r)
KDIR ?= /lib/modules/$(KREL)/build
SUITE ?= bookworm
# Debian's bpftool is where users' PATH does not lead.
export PATH := $(PATH):/usr/sbin:/sbin
# Ubuntu's in the PATH is a wrapper that wants the running kernel's own; any will do.
BPFTOOL ?= $(firstword $(wildcard /usr/lib/linux-tools/*/bpftool) bpftool)

B := build
CFLAGS ?= -O2 -g
# The project's own flags, so that CFLAGS on the command line adds to them.
FLAGS := -std=gnu11 -Wall -Wextra -Wpedantic -Iinclude -I. -DCSF_VERSION='"$(VERSION)"' -pthread \
	-ffile-prefix-map=$(CURDIR)=.
BUILD = @mkdir -p $(@D); echo "  CC      $@"; $(CC) $(FLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d

all: module user ## build the module, the tools, the examples and the tests

include tests/Makefile

user: tools csf examples tests ## build everything that needs no kernel headers

module: ## build kmod/coarse_stat_fs.ko for the running kernel, or KREL= or KDIR=
	@scripts/headers.sh "$(KDIR)"
	$(MAKE) -C $(KDIR) M=$(CURDIR)/kmod modules

tools: $(B)/csfcat tools/csfcat ## build csfcat
EXAMPLES := $(patsubst examples/%.c,$(B)/%,$(wildcard examples/*.c))
examples: $(EXAMPLES) ## build the example programs

$(B)/csfcat: tools/csfcat.c
	$(BUILD) -o $@ $< $(LDFLAGS)

tools/csfcat:
	@ln -sf ../$(B)/csfcat $@

include bpf/Makefile
include packaging/Makefile

$(EXAMPLES): $(B)/%: examples/%.c
	$(BUILD) -o $@ $< $(LDFLAGS)

demo: ## what slow operations were doing: here if mounted, or by BPF, else in a Debian guest
	@scripts/demo.sh

unit: ## test what runs in user space, with sanitizers
	@$(MAKE) --no-print-directory -C tests/unit check

check: ## unit tests, then the module in a 6.1 guest and in an instruction-counting one
	@tests/check.sh unit bookworm icount

check-all: ## lint, check, a 7.x kernel and a 5.x one, BPF here and in a guest, the virtme-ng way, packages, and the test harness itself
	@tests/check.sh --total packages+harness+icount+unit+arm64 lint bookworm newest bpf bpf_guest watch_guest oldest virtme

vm: ## all tests in a guest with the running kernel, or KREL=, where it can be had
	@tests/vm.sh

debian: ## all tests of each writer, or of WRITER=, on a Debian kernel: SUITE= is a line of tests/debian/KERNELS
	@writers=$$(tests/debian/all.sh --list | sed -n 's/^$(SUITE)://p'); status=0; for writer in $${WRITER:-$${writers:-module}}; do \
		WRITER=$$writer tests/debian/run.sh $(SUITE) || status=1; \
	done; exit $$status

debian-all: ## tests on all of tests/debian/KERNELS, and a table; goes on where it was interrupted
	@tests/debian/all.sh

check-debug: ## the module in kernels with KASAN, lockdep, kmemleak and KCSAN, and without memory; takes half an hour, and 20 minutes again
	@tests/debug/run.sh

bench: ## measure, natively and in an instruction-counting guest, into build/bench/
	@tests/bench/run.sh

bench-programs:
	@$(MAKE) --no-print-directory -C tests/bench

format: ## lay out all C sources as .clang-format says
	find include kmod lib bpf tools examples tests -name '*.[ch]' ! -name '*.mod.c' -o -name '*.cc' | xargs clang-format -i

lint: ## look for faults without running anything: clang-tidy, checkpatch, shellcheck and more
	@scripts/lint.sh $(CHECKS)

compdb: ## make compile_commands.json, for clangd
	@scripts/compdb.sh "$(KDIR)"

clean: ## remove what was built; Debian root file systems, debug kernels and what debian-all keeps stay
	rm -rf tools/csfcat $(foreach d,kmod tests/harness,$(addprefix $(d)/,*.o *.ko *.mod *.mod.c .*.cmd .*.d Module.symvers modules.order))
	[ ! -d $(B) ] || find $(B) -mindepth 1 -maxdepth 1 ! -name debian -exec rm -rf {} +
	[ ! -d $(B)/debian ] || find $(B)/debian -mindepth 2 -maxdepth 2 ! -name 'rootfs*' ! -path '$(B)/debian/results/*' \
		! -path '$(B)/debian/linux-source/*' -exec rm -rf {} +

distclean: clean ## clean, and remove root file systems, kernels and results, too
	rm -rf --one-file-system $(B)

help: ## print this list
	@echo "coarse_stat_fs $(VERSION)"
	@sed -n 's/^\([a-z-]*\):[^#]* ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

-include $(wildcard $(B)/*.d $(B)/tests/*.d)

.PHONY: all user module tools examples demo unit check check-all vm debian debian-all bench bench-programs format lint compdb check-debug \
	clean distclean help
