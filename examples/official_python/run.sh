#!/bin/sh
. "$(dirname "$0")/../broker.sh"
"$root/.venv/bin/python" "$root/examples/official_python/order_timeout.py"
