"""`python -m tidemill`: the command line, where the script is not on the path."""

from __future__ import annotations

from tidemill.cli.main import main

if __name__ == "__main__":
    main()
