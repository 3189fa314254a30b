"""What every test stands on: no settings leak in from the environment."""

from __future__ import annotations

import os

# Before anything of ours is imported: a developer's own settings must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("TIDEMILL_") and name != "TIDEMILL_SEEDS"]:
    del os.environ[_name]
