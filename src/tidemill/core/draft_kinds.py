"""Checks that every field of a draft has the right type, so that what is stored reads back.

Pure, and shared: the broker checks before it stores, the client when a message cannot be encoded, to say why.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.arguments import require_int, require_kind, require_whole
from tidemill.core.model import Draft, Once

_WHOLE_MAX = 1 << 62


def check_kinds(draft: Draft) -> None:
    """Every field is of its kind: what is stored must read back."""
    if _is_plain(draft):
        return
    require_kind("a message", draft, Draft, "a Draft")
    require_kind("topic", draft.topic, str, "a text")
    require_kind("body", draft.body, (bytes, bytearray, memoryview), "bytes (encode a text first)")
    if draft.deliver_at_ms is not None:
        require_int("deliver_at_ms", draft.deliver_at_ms)
    if draft.delay_ms is not None:
        require_int("delay_ms", draft.delay_ms)
    if draft.born_at_ms is not None:
        require_whole("born_at_ms", draft.born_at_ms, -_WHOLE_MAX, _WHOLE_MAX)
    if draft.level:
        require_int("level", draft.level)
    if draft.jitter_ms != 0:
        require_int("jitter_ms", draft.jitter_ms)
    require_kind("keys", draft.keys, (tuple, list), "a tuple of texts")
    require_kind("properties", draft.properties, Mapping, "a mapping of texts to texts")
    require_kind("carried", draft.carried, Mapping, "a mapping of texts to texts")
    require_kind("once", draft.once, Once, "one of Once.NO, Once.KEEP and Once.REPLACE")
    for name, value in (("tag", draft.tag), ("message_group", draft.message_group)):
        require_kind(name, value, str, "a text")
    if draft.id is not None:
        require_kind("id", draft.id, str, "a text")
    for key in draft.keys:
        require_kind("a key", key, str, "a text")
    for name, value in (*draft.properties.items(), *draft.carried.items()):
        require_kind("a property's name", name, str, "a text")
        require_kind(f"property {name}", value, str, "a text")


def _is_plain(draft: Draft) -> bool:
    """Nearly every draft: no keys, no properties, and each field of the very type it should have."""
    return (
        type(draft) is Draft
        and type(draft.topic) is str
        and type(draft.body) is bytes
        and (draft.id is None or type(draft.id) is str)
        and (draft.delay_ms is None or type(draft.delay_ms) is int)
        and (draft.deliver_at_ms is None or type(draft.deliver_at_ms) is int)
        and draft.born_at_ms is None
        and type(draft.level) is type(draft.jitter_ms) is int
        and type(draft.tag) is type(draft.message_group) is str
        and type(draft.once) is Once
        and draft.keys == ()
        and type(draft.properties) is dict
        and not draft.properties
        and type(draft.carried) is dict
        and not draft.carried
    )
