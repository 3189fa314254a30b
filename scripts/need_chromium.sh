#!/bin/sh
# Prints the path of a Chromium, installing Debian's with apt where there is none, and sees to the one library
# that Playwright's driver does not bring along. The browser tests and scripts/screenshots.py drive it; nothing
# else needs it.
set -eu
cd "$(dirname "$0")/.."

find_chromium() {
    for candidate in ${CHROMIUM:-} chromium chromium-browser google-chrome; do
        command -v "$candidate" 2>/dev/null && return 0
    done
    return 1
}

# The driver is a Node.js of Playwright's own, linked with libatomic, which a minimal Debian lacks.
for driver in .venv/lib/python3*/site-packages/playwright/driver/node; do
    [ ! -x "$driver" ] || "$driver" --version >/dev/null 2>&1 || scripts/apt_install.sh libatomic1 || true
done

find_chromium && exit 0
if scripts/apt_install.sh chromium; then find_chromium && exit 0; fi
echo "setup: install Chromium (apt-get install chromium) or name one: CHROMIUM=/path/to/chromium" >&2
exit 1
