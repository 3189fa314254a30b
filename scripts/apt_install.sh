#!/bin/sh
# Installs Debian packages if that needs no password. Exits 1 without output if there is no apt or no permission to use it.
#
#   scripts/apt_install.sh PACKAGE...          all of them
#   scripts/apt_install.sh --any PACKAGE...    the first of them that this release of Debian has
#
# Prints one line for each installation. The output of apt goes to build/apt.log, which is named if apt fails.
set -eu
cd "$(dirname "$0")/.."
log=build/apt.log

command -v apt-get >/dev/null 2>&1 || exit 1
if [ "$(id -u)" -eq 0 ]; then as_root=""; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else exit 1; fi

say() { printf 'setup: %s\n' "$*" >&2; }

apt() { # its output is kept in the log, and it must not ask questions
    echo "# apt-get $*" >>"$log"
    $as_root apt-get "$@" >>"$log" 2>&1 </dev/null
}

first_available() { # PACKAGE...: prints the first that could be installed; the last if none could
    for package; do
        apt install -qq --simulate --no-install-recommends "$package" && break
    done
    echo "$package"
}

export DEBIAN_FRONTEND=noninteractive
mkdir -p build
apt update -qq || true
if [ "$1" = --any ]; then
    shift
    set -- "$(first_available "$@")"
fi
say "installing $* with apt-get"
apt install -y -qq --no-install-recommends "$@" && exit 0
say "apt-get could not install $*; its output is in $log"
exit 1
