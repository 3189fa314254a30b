#!/bin/sh
# Sees to what only the tests need, after scripts/setup.sh: Chromium, and PostgreSQL's server. Without them the
# tests that need them are skipped, and say so. Safe to run again at any time.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

scripts/need_chromium.sh >/dev/null || say "going on without Chromium: the browser tests are skipped"
scripts/need_postgres.sh >/dev/null || say "going on without PostgreSQL: the tests that need it are skipped"
touch .venv/.ready-tests
