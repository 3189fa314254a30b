#!/bin/sh
# Sets up .venv with exactly what requirements.lock names. Needs Python 3.11+; asks apt for the venv module
# where that is missing. What only the tests need is seen to by scripts/setup_tests.sh. Safe to run again at any
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
        fail "this Python cannot make virtual environments; install it: apt-get install $package"
}

if ! is_new_enough .venv/bin/python; then
    python=$(find_python)
    need_venv_module "$python"
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

say "installing what requirements.lock names"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock ||
    fail "could not install the dependencies; is a package index within reach?"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
# Envoy needs Python as a shared library; without it the broker is served by hypercorn.
scripts/need_libpython.sh || say "going on without it: the broker is served by hypercorn, which is slower"
# Spark needs Java; without it everything else works, on the embedded runner.
scripts/need_java.sh >/dev/null || say "going on without Java: the timer runs on the embedded runner"
touch .venv/.ready
say "ready"
