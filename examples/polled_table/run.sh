#!/bin/sh
# Runs a table's jobs side by side, by a poller and by Tidemill. Without arguments: a table in SQLite, thrown away.
broker_flags="--flight-port 0"
. "$(dirname "$0")/../broker.sh"
if [ -n "${scratch:-}" ]; then
    set -- --data "$scratch/data" "$@"
    case " $* " in *" --sqlite "* | *" --postgres "*) ;; *) set -- --sqlite "$scratch/jobs.db" "$@" ;; esac
fi
"$root/.venv/bin/python" "$(dirname "$0")/compare.py" "$@"
