#!/bin/sh
# A million reminders from a Parquet table; COUNT=20000 makes it smaller.
broker_flags="--flight-port 0"
. "$(dirname "$0")/../broker.sh"
"$root/.venv/bin/python" "$(dirname "$0")/reminders.py" --count "${COUNT:-1000000}"
