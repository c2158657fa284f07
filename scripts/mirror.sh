# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced: where this machine gets its Debian packages, so that a rootfs or another release's package
# comes from the same place. MIRROR= and MIRROR_SECURITY= override it.

# Every archive of the host's apt configuration, a line each: URI SUITE. Both formats: one-line
# sources.list and deb822 .sources.
apt_archives() {
	local dir=${APT_DIR:-/etc/apt}
	cat "$dir"/sources.list "$dir"/sources.list.d/*.list 2>/dev/null |
		sed -n 's/^[[:space:]]*deb[[:space:]]\{1,\}\(\[[^]]*\][[:space:]]*\)\{0,1\}//p' |
		awk '{ print $1, $2 }'
	cat /dev/null "$dir"/sources.list.d/*.sources 2>/dev/null | awk '
		function flush(    u, s, i, j, uri_count, suite_count) {
			uri_count = split(uris, u, " ")
			suite_count = split(suites, s, " ")
			if (types ~ /(^| )deb( |$)/ && tolower(enabled) != "no")
				for (i = 1; i <= uri_count; i++)
					for (j = 1; j <= suite_count; j++)
						print u[i], s[j]
			types = uris = suites = enabled = ""
		}
		/^[[:space:]]*$/ || FNR == 1 { flush() }
		/^#/ { next }
		/^[A-Za-z-]+:/ { key = tolower($1); sub(/^[^:]*:[[:space:]]*/, "") }
		key == "types:" { types = types " " $0 }
		key == "uris:" { uris = uris " " $0 }
		key == "suites:" { suites = suites " " $0 }
		key == "enabled:" { enabled = $0 }
		END { flush() }'
}

usable_uri='^(https?|file)://?[^ ]+'

# Debian's main archive as the host sees it; on a host that is not Debian, Debian's own.
debian_mirror() {
	local uri
	[ -z "${MIRROR:-}" ] || { echo "${MIRROR%/}"; return; }
	uri=$(apt_archives | grep -E "$usable_uri" | sed -E 's,/+ , ,' |
		awk '$1 ~ /\/debian$/ && $2 !~ /security/ { print $1; exit }')
	echo "${uri:-http://deb.debian.org/debian}"
}

debian_security_mirror() {
	local uri
	[ -z "${MIRROR_SECURITY:-}" ] || { echo "${MIRROR_SECURITY%/}"; return; }
	uri=$(apt_archives | grep -E "$usable_uri" | sed -E 's,/+ , ,' |
		awk '$2 ~ /-security$/ && $1 ~ /debian/ { print $1; exit }')
	[ -n "$uri" ] && [ -z "${MIRROR:-}" ] || uri=$(debian_mirror)-security
	echo "$uri"
}

# The host's proxies and download settings as apt.conf lines, for an apt that reads nothing else of
# the host's configuration.
apt_download_conf() {
	apt-config dump 2>/dev/null |
		grep -E '^Acquire::(https?|Check-Valid-Until|Check-Date)(::[^ ]+)? "..*";$' || true
	echo 'Acquire::Retries "3";'
	echo 'Acquire::Languages "none";'
}

# Sources of one Debian suite, as far as it has them.
debian_sources() { # SUITE...
	local suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed=
	[ ! -e "$keyring" ] || signed="[signed-by=$keyring] "
	for suite in "$@"; do
		echo "deb ${signed}$(debian_mirror) $suite main"
		case $suite in
		sid | forky | *-backports) ;;
		*) echo "deb ${signed}$(debian_security_mirror) $suite-security main" ;;
		esac
	done
}

# For a private apt: a suite's kernels, on top of the suite that it is an addition to.
debian_suite() { # APT_DIR SUITE BASE
	if [ "$2" = "$3" ]; then
		debian_sources "$3" >"$1"/sources.list
		: >"$1"/preferences
	else
		debian_sources "$3" "$2" >"$1"/sources.list
		printf 'Package: linux-*\nPin: release n=%s\nPin-Priority: 900\n' "$2" >"$1"/preferences
	fi
}

# An apt that knows only DIR/sources.list and DIR/preferences and keeps all its state in DIR.
private_apt_init() { # DIR [DPKG_STATUS]: with the host's, it installs on the host
	mkdir -p "$1"/lists/partial "$1"/cache/archives/partial "$1"/empty
	touch "$1"/status "$1"/preferences
	{
		apt_download_conf
		cat <<-CONF
			Dir::Etc::sourcelist "$1/sources.list";
			Dir::Etc::preferences "$1/preferences";
			Dir::State "$1";
			Dir::State::lists "$1/lists";
			Dir::State::status "${2:-$1/status}";
			Dir::Cache "$1/cache";
			APT::Architecture "amd64";
			APT::Architectures { "amd64"; };
			APT::Sandbox::User "root";
		CONF
	} >"$1"/apt.conf
	# Dir::Etc::*parts are needed before apt.conf.d is read, hence not with -c.
	cat >"$1"/env.conf <<-CONF
		Dir::Etc::parts "$1/empty";
		Dir::Etc::main "$1/apt.conf";
		Dir::Etc::sourceparts "$1/empty";
		Dir::Etc::preferencesparts "$1/empty";
	CONF
}

private_apt() { # DIR apt-get|apt-cache ARGUMENTS...
	local dir=$1
	shift
	APT_CONFIG=$dir/env.conf "$@"
}
