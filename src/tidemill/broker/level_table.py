"""The level table of a data directory: kept there, so that a start without `--levels` goes on with it.

Owns the file pair `levels.0/1`. A message's time is fixed when it is stored, so another table re-times
nothing: it only says what the levels of messages to come mean. Both files hold the same table.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import DiskFullError
from tidemill.core.levels import DEFAULT_LEVELS
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

logger = logging.getLogger(__name__)

LEVELS_NAME = "levels"
LEVELS_FORMAT = 1


def decode_levels(content: bytes) -> str:
    """The table that was kept."""
    return str(json.loads(content)["levels"])


def with_level_table(settings: BrokerSettings, disk: Disk, directory: Path) -> BrokerSettings:
    """The settings with the table to use: the one they ask for, which is kept; else the one kept."""
    checkpoint = Checkpoint(disk, directory, LEVELS_NAME, LEVELS_FORMAT, decode_levels)
    lost = (
        "the delay levels are not known. Nothing was changed. Restore one of them from a backup, or start "
        "with --levels and the table to use"
    )
    content = checkpoint.load() if settings.levels else checkpoint.load_kept(lost)
    kept = decode_levels(content) if content is not None else DEFAULT_LEVELS
    table = " ".join(settings.levels.split()) or kept
    if table != kept:
        logger.info(
            "the delay levels change from %r to %r; pending messages keep their due time", kept, table
        )
        checkpoint.save(json.dumps({"levels": table}).encode(), sync=True)
    with suppress(DiskFullError):  # the next opening will do as well
        checkpoint.keep_twice()
    return replace(settings, levels=table)
