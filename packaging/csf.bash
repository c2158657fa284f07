# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Completion for csf and csfcat. The words come from the programs' own help: there is no second list.

_csf_commands() { # PROGRAM: the first words of the lines that list its commands
	"$1" "$2" 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\).*/\1/p'
}

_csf_options() { # COMMAND
	csf "$1" --help 2>/dev/null | grep -oE -- '(^| )--[a-z][a-z-]*=?' | tr -d ' '
}

_csf_run_place() { # of the word that run takes for a command: the first that is no option
	local place=2
	while [ "$place" -lt "$COMP_CWORD" ] && [[ ${COMP_WORDS[place]} == -* ]]; do place=$((place + 1)); done
	echo "$place"
}

_csf() {
	local program=${COMP_WORDS[0]##*/} word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		case $program in
		csf) words=$(_csf_commands csf help) ;;
		csfcat) words="$(_csf_commands csfcat --help) --help --version" ;;
		esac
	elif [ "$program" != csf ]; then
		return
	elif [ "$command" = help ]; then
		words=$(_csf_commands csf help)
	elif [ "$command" = run ] && [ "$COMP_CWORD" -gt "$(_csf_run_place)" ]; then
		return # what that command takes, files most likely
	elif [[ $word == -* ]]; then
		words=$(_csf_options "$command")
	elif [ "$command" = run ]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$word")
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
	[[ ${COMPREPLY[0]:-} != *= ]] || compopt -o nospace 2>/dev/null
}

complete -o default -F _csf csf csfcat
