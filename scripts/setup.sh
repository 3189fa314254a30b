#!/bin/sh
# Sets up .venv with the versions of requirements.lock. Needs Python 3.11+, and installs the venv module with apt
# if it is missing. scripts/setup_tests.sh installs what only the tests need. Safe to run again at any
# time; `make` runs it only when something changed.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3"
}

need_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    scripts/apt_install.sh "$package" ||
        fail "this Python has no venv module; install it: apt-get install $package"
}

if ! is_new_enough .venv/bin/python; then
    python=$(find_python)
    need_venv_module "$python"
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

say "installing the packages of requirements.lock"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock ||
    fail "could not install the dependencies; check that a package index can be reached"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
# Envoy needs Python as a shared library; without it the broker is served by hypercorn.
scripts/need_libpython.sh || say "continuing without it: the broker is served by hypercorn, which is slower"
# Spark needs Java; without it everything else works, on the embedded runner.
scripts/need_java.sh >/dev/null || say "continuing without Java: the embedded runner runs the timer"
touch .venv/.ready
say "ready"
