"""Runs seeds by hand, one (with its traceback) or a range (with what they met):

PYTHONPATH=tests .venv/bin/python -m simulation.replay 17
PYTHONPATH=tests .venv/bin/python -m simulation.replay 0 3000
PYTHONPATH=tests .venv/bin/python -m simulation.replay --damage 0 3000
PYTHONPATH=tests .venv/bin/python -m simulation.replay --damaged-log 0 3000
PYTHONPATH=tests .venv/bin/python -m simulation.replay --salvage 0 3000
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from simulation import damaged_lives, damaged_log_lives, lives, salvaged_lives


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    run = lives.run
    if arguments[0] == "--damage":
        run, arguments = damaged_lives.run, arguments[1:]
    elif arguments[0] == "--salvage":
        run, arguments = salvaged_lives.run, arguments[1:]
    elif arguments[0] == "--damaged-log":
        run, arguments = damaged_log_lives.run, arguments[1:]
    first = int(arguments[0])
    end = int(arguments[1]) if len(arguments) > 1 else first + 1
    failed = 0
    events: Counter[str] = Counter()
    for seed in range(first, end):
        directory = Path(tempfile.mkdtemp(prefix=f"tidemill-{seed}-", dir=_quick_directory()))
        try:
            events += run(seed, directory).events
        except Exception as fault:
            failed += 1
            print(f"seed {seed}: {type(fault).__name__}: {fault}", flush=True)
            if end == first + 1:
                traceback.print_exc()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{end - first - failed} of {end - first} seeds passed; {dict(events)}")
    return min(failed, 1)


def _quick_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
