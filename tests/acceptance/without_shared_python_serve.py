"""`tidemill serve` as on a machine whose Python has no shared library, such as a stock Debian."""

from __future__ import annotations

import find_libpython

from tidemill.cli.main import main

if __name__ == "__main__":
    find_libpython.candidate_paths = lambda *_: []
    main()
