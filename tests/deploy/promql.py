"""As much of PromQL as it takes to compare an expression with an exposition: its metrics and its labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

# Labels that Prometheus itself adds to everything it scrapes.
_ADDED = {"job", "instance"}
_METRIC = re.compile(r"(?<![\w{,\"$])((?:tidemill|process)_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Named:
    """A metric as an expression names it, with the labels that it must have for that."""

    metric: str
    labels: frozenset[str]


def named_in(expression: str) -> Iterator[Named]:
    """The metrics of an expression; what it groups by must be a label of each of them."""
    grouped = {label.strip() for part in _GROUPING.findall(expression) for label in part.split(",")}
    for metric, matchers in _METRIC.findall(expression):
        labels = grouped | set(_MATCHER.findall(matchers))
        yield Named(metric, frozenset(labels - _ADDED))


def labels_by_sample(exposition: str) -> dict[str, set[str]]:
    """Every sample name of an exposition, with the labels it was seen with."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
