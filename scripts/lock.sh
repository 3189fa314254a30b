#!/bin/sh
# Updates requirements.lock: every package of pyproject.toml with its extras, pinned and hashed, for all
# supported Pythons. It names no index, so packages come from the index that the machine uses.
set -eu
cd "$(dirname "$0")/.."

lock() { # FILE COMMENT FLAGS...: pins the packages that the flags select
    file=$1 comment=$2
    shift 2
    .venv/bin/uv pip compile pyproject.toml "$@" --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o requirements.new
    { echo "$comment"; cat requirements.new; } > "$file"
    rm requirements.new
}

lock requirements.lock \
    "# Exact versions of everything, with hashes. Made by \`make lock\` from pyproject.toml; do not edit." \
    --all-extras --upgrade
# The same versions, only the packages that a broker needs: for the container.
lock deploy/requirements.lock \
    "# Exact versions of what a broker needs, with hashes. Made by \`make lock\`; do not edit." \
    --extra server --extra spark --constraint requirements.lock

if grep -nE '://|^-' requirements.lock deploy/requirements.lock; then
    echo "lock: the lines above name an index or a URL; a lock file must name only packages" >&2
    exit 1
fi
