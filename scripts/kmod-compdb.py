#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Print a compile_commands.json of the module, from what kbuild wrote down when it built it.

kbuild keeps each command in kmod/.NAME.o.cmd. It is gcc's, with dozens of flags that clang does not
know, so only those stay that change what the code means. A module that was built in a root file system
(tests/debian/build.sh) has paths of there: --root makes them ours.
"""
import argparse
import json
import os
import re
import shlex
import sys

# What the preprocessor reads and the language that it is; the rest is about the code made of it.
KEPT = re.compile(
    r"-[DU].|-std=|-nostdinc|-m64|-mno-(sse|mmx|sse2|3dnow|avx|80387)$|-mcmodel=|-O[0-9s]|-Wall$|-Wundef$"
    r"|-f(no-)?(strict-aliasing|common|short-wchar|PIE|strict-overflow|delete-null-pointer-checks|builtin)"
)
WITH_PATH = ("-I", "-include", "-isystem")
ADDED = ["-Wno-unknown-warning-option", "-Wno-gnu", "-Wno-pointer-sign", "-Wno-address-of-packed-member"]


class Build:
    """Where a module was built, and where that is now."""

    def __init__(self, args):
        self.root = os.path.abspath(args.root) if args.root else ""
        self.kmod = os.path.abspath(args.kmod)
        self.tree = os.path.abspath(args.tree or os.path.join(self.kmod, ".."))
        kdir = self.root + args.kdir if self.root else os.path.abspath(args.kdir)
        link = os.readlink(kdir) if os.path.islink(kdir) else kdir
        self.kdir = self.root + link if self.root and link.startswith("/") and link != kdir else kdir

    def here(self, path):
        """A path of the build, as it is called from here."""
        if not path.startswith("/"):
            return path
        path = os.path.normpath(self.root + path)
        built = os.path.dirname(self.kmod)
        if path.startswith(built + "/"):
            return self.tree + path[len(built) :]
        return path


def include(path, build):
    """The kernel's headers are not ours to mend."""
    return ["-I", path] if path.startswith(build.tree) else ["-isystem", path]


def arguments(command, build):
    """Of gcc's, those that clang takes."""
    words = iter(shlex.split(command)[1:])
    kept = []
    for word in words:
        for option in WITH_PATH:
            if word == option:
                kept += [option, build.here(next(words))]
            elif option == "-I" and word.startswith("-I"):
                kept += include(build.here(word[2:]), build)
        if KEPT.match(word):
            kept.append(word)
    return kept


def entry(path, build):
    """One .cmd file's, or None if it did not compile C."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    command = re.search(r"^(?:saved)?cmd_\S+ := (.*)$", text, re.M)
    source = re.search(r"^source_\S+ := (\S+\.c)$", text, re.M)
    if not command or not source or ".mod.c" in source[1]:
        return None
    file = build.here(os.path.join("/" if build.root else "", source[1]))
    if not os.path.isabs(source[1]):  # since 6.13 relative to the module's directory
        file = os.path.join(build.tree, "kmod", source[1])
    flags = arguments(command[1].split(" ; ")[0], build)
    relative = any(f.startswith("./") for f in flags)
    return {
        "directory": build.kdir if relative else build.kmod,
        "file": file,
        "arguments": ["clang", *flags, *ADDED, "-c", file],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the root file system in which it was built")
    parser.add_argument("--tree", help="the sources as they are here (default: KMOD/..)")
    parser.add_argument("kmod", help="the directory in which the module was built")
    parser.add_argument("kdir", help="the kernel's build directory, a path inside of --root")
    args = parser.parse_args()
    build = Build(args)
    found = sorted(name for name in os.listdir(build.kmod) if re.match(r"\..*\.o\.cmd$", name))
    entries = [entry(os.path.join(build.kmod, name), build) for name in found]
    entries = [e for e in entries if e]
    if not entries:
        sys.exit(f"{sys.argv[0]}: {build.kmod} has no .cmd files: build the module first")
    json.dump(entries, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
