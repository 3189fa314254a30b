#!/bin/sh
# Prints the path of promtool, which checks metrics and alert rules. Where there is none, it is unpacked from
# Debian's package `prometheus` into build/tools; nothing is installed, so no server starts.
set -eu
cd "$(dirname "$0")/.."

command -v promtool && exit 0
tool="$PWD/build/tools/usr/bin/promtool"
if [ ! -x "$tool" ]; then
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || exit 1
    mkdir -p build/tools
    (cd build/tools && apt-get download -qq prometheus >&2 && dpkg-deb -x prometheus_*.deb .) || exit 1
    rm -f build/tools/prometheus_*.deb
fi
echo "$tool"
