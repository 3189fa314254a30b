#!/bin/sh
. "$(dirname "$0")/../broker.sh"
"$root/.venv/bin/python" "$root/examples/tidemill_client/order_timeout.py"
