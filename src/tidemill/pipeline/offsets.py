"""Spark's offset as a typed value: the target of a step, and a number that makes each step a new offset."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class StepOffset:
    """How far the shards shall go. Only a target: each shard works from its own durable cursor."""

    number: int = 0
    epoch: int = 0
    seq: int = 0
    tick: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, int]) -> StepOffset:
        return cls(**fields)
