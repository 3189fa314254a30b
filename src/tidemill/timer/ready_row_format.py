"""The row of a ready file, apart from the file: the last stage makes it, and stages know no files.

    offset  bytes  field
    0       8      deliver-at, Unix ms, signed
    8       8      seq, unsigned

Little-endian.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import Rows

READY = np.dtype([("deliver_at_ms", "<i8"), ("seq", "<u8")])
READY_BYTES = 16
assert READY.itemsize == READY_BYTES

ReadyRows = Rows
