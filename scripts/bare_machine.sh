#!/bin/sh
# Runs the README's commands on a stock Debian: a minimal root with only python3, python3-venv, make and git.
#
#   scripts/bare_machine.sh SUITE [COMMAND]      e.g. scripts/bare_machine.sh trixie "make demo"
#
# Each run begins with the same root, kept as build/bare-machine/SUITE.tar, and a clone of HEAD. Only downloads
# are kept after a run. Mirror, package indexes and certificates are those of this machine's configuration.
# If it cannot run (no root, no Debian mirror), it prints the reason in one line and ends with 0.
set -eu
cd "$(dirname "$0")/.."

PACKAGES=ca-certificates,python3,python3-venv,make,git
suite=$1
command=${2:-make demo && make test}
cache=$PWD/build/bare-machine

say() { printf 'bare-machine: %s: %s\n' "$suite" "$*" >&2; }
skip() { say "skipped: $*"; exit 0; }

find_mirror() { # prints the first configured archive that has this suite
    apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | sort -u | while read -r uri; do
        if /usr/lib/apt/apt-helper download-file "${uri%/}/dists/$suite/InRelease" "$cache/InRelease" \
            >/dev/null 2>&1 && [ -s "$cache/InRelease" ]; then
            echo "${uri%/}"
            break
        fi
    done
    rm -f "$cache/InRelease"
}

make_tar() {
    mirror=$(find_mirror)
    [ -n "$mirror" ] || skip "no archive in this machine's apt configuration has $suite"
    command -v debootstrap >/dev/null 2>&1 || scripts/apt_install.sh debootstrap ||
        skip "debootstrap is not installed: apt-get install debootstrap"
    say "creating a minimal root"
    root=$(mktemp -d "$cache/$suite.XXXXXX")
    # It mounts /proc and /sys in the root; its mounts end with the last process of the namespace.
    unshare --mount debootstrap --variant=minbase --include="$PACKAGES" "$suite" "$root" "$mirror" \
        >"$cache/$suite.debootstrap.log" 2>&1 ||
        { remove "$root"; say "debootstrap failed; see $cache/$suite.debootstrap.log"; exit 1; }
    rm -f "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cf "$cache/$suite.tar.new" --one-file-system .
    mv "$cache/$suite.tar.new" "$cache/$suite.tar"
    remove "$root"
}

# Never follows a mount into the machine that runs this.
remove() { rm -rf --one-file-system "$1"; }

# -- inside its own namespaces: these mounts end with the last process --------------------------------

bring() { # PATH: copy this file or directory of the machine into the root, unless the root has it
    if [ ! -e "$1" ] || [ -e "$root$1" ]; then return; fi
    mkdir -p "$(dirname "$root$1")"
    cp -RL "$1" "$root$1"
}

keep() { # DIRECTORY NAME: keep this directory of the root after the run, for the next one's downloads
    mkdir -p "$root$1" "$cache/$2"
    mount --bind "$cache/$2" "$root$1"
}

run_inside() {
    root=$1
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mkdir -p "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
    ln -sf pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    keep /var/cache/apt/archives "$suite.apt"
    keep /root/.cache/pip pip
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    for path in /etc/pip.conf "$HOME/.config/pip" "$HOME/.pip" "$HOME/.npmrc" "$HOME/.m2/settings.xml"; do
        bring "$path"
    done
    for path in /usr/local/share/ca-certificates/*; do bring "$path"; done
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    apt-config dump | grep -E '^Acquire::(https?::[Pp]roxy|Check-Valid-Until)' >"$root/etc/apt/apt.conf.d/90machine" || true
    # How this machine reaches its package indexes; if a variable names a file, the file is copied too.
    set -- HOME="$HOME" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    for name in $(env | sed -n -E 's/^((PIP|NPM_CONFIG)_[A-Za-z_]*|[a-zA-Z_]*_(proxy|PROXY)|[A-Z_]*(SSL_CERT|CA_BUNDLE|CA_CERTS)[A-Z_]*)=.*/\1/p'); do
        value=$(printenv "$name")
        case $value in /*) bring "$value" ;; esac
        set -- "$@" "$name=$value"
    done
    exec env -i "$@" chroot "$root" /bin/sh -ec "cd /tidemill; $command"
}

if [ "${TIDEMILL_BARE_ROOT:-}" ]; then
    run_inside "$TIDEMILL_BARE_ROOT"
fi

[ "$(id -u)" -eq 0 ] || skip "root is needed to create a root directory with debootstrap and to enter it"
command -v apt-get >/dev/null 2>&1 || skip "a Debian mirror from apt's configuration is needed, and this machine has no apt"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow namespaces (unshare --mount)"
mkdir -p "$cache"
[ -s "$cache/$suite.tar" ] || make_tar
root=$(mktemp -d "$cache/$suite.XXXXXX")
trap 'remove "$root"' EXIT
tar -C "$root" -xf "$cache/$suite.tar"
chmod 755 "$root"  # as on a machine: programs that do not run as root (PostgreSQL) need access
git clone --quiet --no-hardlinks . "$root/tidemill"
say "running \"$command\" on $(git rev-parse --short HEAD)"
# In the background, so that this script handles a signal at once; unshare itself handles none meanwhile.
TIDEMILL_BARE_ROOT="$root" unshare --mount --pid --fork --kill-child "$PWD/scripts/bare_machine.sh" "$suite" "$command" &
child=$!
trap 'kill -KILL $child; exit 1' INT TERM
if wait $child; then
    say "passed: $command"
else
    say "failed: $command"
    exit 1
fi
