#!/bin/sh
# Prints the path of a Java 17+ command, and installs a headless one with apt if there is none.
# The timer pipeline on Spark needs it; without Java the embedded runner runs the timer.
set -eu
cd "$(dirname "$0")/.."

java_major() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java ${JAVA_VERSIONS:-/usr/lib/jvm}/*/bin/java; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        major=$(java_major "$candidate")
        if [ "${major:-0}" -ge 17 ]; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

find_java && exit 0
if scripts/apt_install.sh --any openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; then
    find_java && exit 0
fi
echo "setup: Spark needs Java 17 or newer; install one (apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2
exit 1
