#!/bin/sh
# Installs the shared library of .venv's Python, which Envoy needs. Debian and Ubuntu have it in a separate
# package. Without it everything works with the slower server (`tidemill serve --server hypercorn`).
set -eu
cd "$(dirname "$0")/.."

missing() {
    .venv/bin/python -c 'from tidemill.server.process.shared_python import missing_package; print(missing_package() or "")'
}

package=$(missing)
[ -z "$package" ] && exit 0
scripts/apt_install.sh "$package" && [ -z "$(missing)" ] && exit 0
echo "setup: Envoy needs Python's shared library; install it (apt-get install $package)" >&2
exit 1
