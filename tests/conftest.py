"""What every test stands on: no settings leak in from the environment, and Java starts quickly."""

from __future__ import annotations

import os

# Before anything of ours is imported: a developer's own settings must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("TIDEMILL_") and name != "TIDEMILL_SEEDS"]:
    del os.environ[_name]

# Tests start Java many times and never run it for long: compiling little is a third less work each time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
