"""What a frame holds, whatever kind it is: its messages, and the request that it carries out. Pure."""

from __future__ import annotations

from tidemill.log.frame import Frame
from tidemill.store.formats.frames import Cancel, End, Half, Kind, ReEnter, Release, SendBack
from tidemill.store.formats.message_format import Section
from tidemill.store.formats.request_format import Request


def messages_in(frame: Frame) -> Section | None:
    """The messages that a frame brings into the store; None where it brings none.

    Not those that it only carries along: open halves, and what is released by value.
    """
    match frame.kind:
        case Kind.MESSAGES:
            return Section(frame.payload)
        case Kind.RE_ENTER:
            return ReEnter.read(frame.payload).section
        case Kind.END:
            return End.read(frame.payload).section
        case Kind.SEND_BACK:
            return SendBack.read(frame.payload).section
        case _:
            return None


def request_in(frame: Frame) -> Request | None:
    """The request that a frame carries out; None where it has no id."""
    match frame.kind:
        case Kind.CANCEL:
            return Cancel.read(frame.payload).request
        case Kind.RE_ENTER:
            return ReEnter.read(frame.payload).request
        case _:
            return None


def section_in(kind: int, payload: memoryview) -> Section:
    """The messages inside a frame's payload, whatever kind it is."""
    match kind:
        case Kind.MESSAGES:
            return Section(payload)
        case Kind.RELEASE:
            return _there(Release.read(payload).section)
        case Kind.RE_ENTER:
            return ReEnter.read(payload).section
        case Kind.HALF:
            return Half.read(payload).section
        case Kind.END:
            return _there(End.read(payload).section)
        case _:
            assert kind == Kind.SEND_BACK
            return SendBack.read(payload).section


def _there(section: Section | None) -> Section:
    assert section is not None
    return section
