#!/bin/sh
# Prints the path of a Chromium, and installs Debian's with apt if there is none. Also installs the one library
# that Playwright's driver lacks. Only the browser tests and scripts/screenshots.py need it.
set -eu
cd "$(dirname "$0")/.."

find_chromium() {
    for candidate in ${CHROMIUM:-} chromium chromium-browser google-chrome; do
        command -v "$candidate" 2>/dev/null && return 0
    done
    return 1
}

# The driver is Playwright's own Node.js, linked with libatomic, which a minimal Debian lacks.
for driver in .venv/lib/python3*/site-packages/playwright/driver/node; do
    [ ! -x "$driver" ] || "$driver" --version >/dev/null 2>&1 || scripts/apt_install.sh libatomic1 || true
done

find_chromium && exit 0
if scripts/apt_install.sh chromium; then find_chromium && exit 0; fi
echo "setup: install Chromium (apt-get install chromium) or name one: CHROMIUM=/path/to/chromium" >&2
exit 1
