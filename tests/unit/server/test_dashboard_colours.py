"""The colours of chart series differ for every eye, in both schemes, and stand out from the panel."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tidemill.server

F64 = npt.NDArray[np.float64]
_BASE = Path(tidemill.server.__file__).parent / "web" / "style" / "base.css"
_DIFFERENCE_MIN = 20  # in CIELAB; about 2 is just visible side by side
_CONTRAST_MIN = 2.0  # to the panel; bars are large and named in the tip and the legend
# What is seen of linear RGB with no cones of one kind (Machado, Oliveira and Fernandes 2009).
_EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def _linear(colour: str) -> F64:
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def _lab(linear: F64) -> F64:
    share = _XYZ @ np.clip(linear, 0, 1) / _WHITE
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _luminance(colour: str) -> float:
    return float((_XYZ @ _linear(colour))[1])


def _scheme(name: str) -> dict[str, str]:
    light, dark = _BASE.read_text().split(':root[data-theme="dark"]')
    return dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6});", light if name == "light" else dark))


def _series(colours: dict[str, str]) -> list[str]:
    found = [value for name, value in colours.items() if re.fullmatch(r"--k(\d|-other)", name)]
    assert len(found) == 7  # six topics and the sum of the others, as the forecast has
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eye", _EYES)
def test_series_can_be_distinguished(scheme, eye) -> None:
    seen = {colour: _lab(_EYES[eye] @ _linear(colour)) for colour in _series(_scheme(scheme))}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= _DIFFERENCE_MIN, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_series_stand_out_from_the_panel(scheme) -> None:
    colours = _scheme(scheme)
    surface = _luminance(colours["--surface"]) + 0.05
    for colour in _series(colours):
        own = _luminance(colour) + 0.05
        assert max(own, surface) / min(own, surface) >= _CONTRAST_MIN, colour
