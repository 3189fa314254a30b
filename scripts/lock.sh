#!/bin/sh
# Makes requirements.lock again: every package of pyproject.toml with its extras, pinned and hashed, for all
# supported Pythons. Names no index, so it installs from whichever one the machine uses.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --quiet -o requirements.new
{
    echo "# Exact versions of everything, with hashes. Made by \`make lock\` from pyproject.toml; do not edit."
    cat requirements.new
} > requirements.lock
rm requirements.new
if grep -nE '://|^-' requirements.lock; then
    echo "lock: the lines above name a place; a lock names only packages" >&2
    exit 1
fi
