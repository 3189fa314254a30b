# Sourced by every run.sh. Sets TIDEMILL_ENDPOINT to a broker that lives as long as the script, unless the
# variable names one already, and makes the topic that the examples use.

set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
tidemill="$root/.venv/bin/tidemill"
if [ ! -x "$tidemill" ]; then
    make -s -C "$root" setup
fi

if [ -z "${TIDEMILL_ENDPOINT:-}" ]; then
    scratch=$(mktemp -d)
    "$tidemill" serve --data "$scratch/data" --port 0 ${broker_flags:---flight-port -1} \
        --pipeline "${TIDEMILL_PIPELINE:-embedded}" \
        >"$scratch/log" 2>&1 &
    serving=$!
    trap 'kill "$serving" 2>/dev/null || true; wait "$serving" || true; rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    tries=0
    until grep -q "serves on" "$scratch/log"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ] || ! kill -0 "$serving" 2>/dev/null; then
            cat "$scratch/log" >&2
            exit 1
        fi
        sleep 0.1
    done
    TIDEMILL_ENDPOINT=$(sed -n 's/.*serves on \([^ ]*\).*/\1/p' "$scratch/log")
fi
export TIDEMILL_ENDPOINT
"$tidemill" topics create order-timeouts >/dev/null
echo "broker: $TIDEMILL_ENDPOINT"
