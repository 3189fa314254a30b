#!/bin/sh
# Prints the path of promtool, which checks metrics and alert rules. If there is none, it is unpacked into
# build/tools from Debian's package `promtool`, or from `prometheus` before Debian 13.
# Nothing is installed, so no server starts.
set -eu
cd "$(dirname "$0")/.."

command -v promtool && exit 0
tool="$PWD/build/tools/usr/bin/promtool"
if [ ! -x "$tool" ]; then
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || exit 1
    mkdir -p build/tools
    for package in promtool prometheus; do
        (cd build/tools && apt-get download -qq "$package" >&2 && dpkg-deb -x "${package}"_*.deb .) || continue
        rm -f build/tools/"${package}"_*.deb
        [ ! -x "$tool" ] || break
    done
fi
[ -x "$tool" ] || exit 1
echo "$tool"
