#!/bin/sh
# Installs what only the tests need, after scripts/setup.sh: Chromium and PostgreSQL's server. Tests that need a
# missing program are skipped and name it. Safe to run again at any time.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

scripts/need_chromium.sh >/dev/null || say "continuing without Chromium: the browser tests are skipped"
scripts/need_postgres.sh >/dev/null || say "continuing without PostgreSQL: the tests that need it are skipped"
touch .venv/.ready-tests
