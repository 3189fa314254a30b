#!/bin/sh
# Prints the path of PostgreSQL's initdb, and installs Debian's server with apt if there is none. Only the tests
# need it: that of the how-to about polled tables starts temporary servers with it.
set -eu
cd "$(dirname "$0")/.."

# In Debian the server's programs are not on the path; each version has a folder.
find_postgres() {
    for candidate in initdb ${POSTGRES_VERSIONS:-/usr/lib/postgresql}/*/bin/initdb; do
        command -v "$candidate" 2>/dev/null && return 0
    done
    return 1
}

find_postgres && exit 0
# Debian's package creates a database and starts a server for it, unless this file forbids it.
settings=${POSTGRES_SETTINGS:-/etc/postgresql-common}/createcluster.conf
if [ "$(id -u)" -eq 0 ]; then as_root=""; else as_root="sudo -n"; fi
if command -v apt-get >/dev/null 2>&1 && [ ! -e "$settings" ]; then
    { $as_root mkdir -p "${settings%/*}" &&
        echo "create_main_cluster = false" | $as_root tee "$settings"; } >/dev/null 2>&1 || true
fi
if scripts/apt_install.sh postgresql; then find_postgres && exit 0; fi
echo "setup: install PostgreSQL's server (apt-get install postgresql), with initdb and postgres on the path" >&2
exit 1
