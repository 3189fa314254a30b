"""The verbs that are used less often, by what they are about: `client.topics.create("orders")`."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.client.arguments import optional_ms, optional_time
from tidemill.client.checks import (
    require_flag,
    require_group_settings,
    require_limit,
    require_queues,
    require_text,
    require_text_or_none,
    texts_of,
    topic_type_of,
)
from tidemill.client.verb import K, Namespace, Verb
from tidemill.core.answers import Backup, DamagedMessage, DeadLetter, GroupInfo, Holds, TopicInfo
from tidemill.core.arguments import require_int
from tidemill.core.durations import Moment, Span, as_time_ms
from tidemill.core.holds import Held, held_named
from tidemill.core.model import TopicType


class Topics(Namespace[K]):
    """`client.topics`."""

    @Verb
    async def list(self) -> list[TopicInfo]:
        """Every topic that you may look at, with its counts."""
        return await self._operations.topics()

    @Verb
    async def create(
        self,
        name: str,
        type: TopicType | str = TopicType.MIXED,  # noqa: A002 - the name people look for
        *,
        queues: int | None = None,
    ) -> TopicInfo:
        """Make a topic; the same again is no error."""
        require_text("topic", name)
        require_queues(queues)
        return await self._operations.create_topic(name, topic_type_of(type), queues)

    @Verb
    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic; returns how many pending messages were cancelled with it."""
        require_text("topic", name)
        require_flag("force", force)
        return await self._operations.delete_topic(name, force)

    @Verb
    async def pause(self, name: str) -> TopicInfo:
        """Hold a topic's releases; what falls due meanwhile goes when it is resumed."""
        require_text("topic", name)
        return await self._operations.pause_topic(name)

    @Verb
    async def resume(self, name: str) -> TopicInfo:
        """Let a topic's releases go on."""
        require_text("topic", name)
        return await self._operations.resume_topic(name)

    @Verb
    async def limit(self, name: str, per_second: int) -> TopicInfo:
        """Bound a topic's releases a second; 0: no limit."""
        require_text("topic", name)
        require_int("per_second", per_second)
        return await self._operations.limit_topic(name, per_second)


class Groups(Namespace[K]):
    """`client.groups`: groups of consumers."""

    @Verb
    async def list(self) -> list[GroupInfo]:
        """Every group that you may look at: its settings and how far behind it is."""
        return await self._operations.groups()

    @Verb
    async def set(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        is_fifo: bool | None = None,
        start: str | None = None,
        backoff: str | None = None,
    ) -> GroupInfo:
        """Make a group, or change what is given; the rest stays."""
        require_text("group", name)
        require_group_settings(max_attempts, is_fifo, start, backoff)
        given = {"max_attempts": max_attempts, "is_fifo": is_fifo, "start": start, "backoff": backoff}
        chosen = {setting: value for setting, value in given.items() if value is not None}
        return await self._operations.set_group(name, chosen)

    @Verb
    async def reset(self, name: str, topic: str, to: Moment) -> None:
        """Let a group read a topic again from the messages released at a time."""
        require_text("group", name)
        require_text("topic", topic)
        await self._operations.reset_group(name, topic, as_time_ms(to))


class DeadLetters(Namespace[K]):
    """`client.dead_letters`: messages that a group gave up on."""

    @Verb
    async def list(self, group: str | None = None, *, limit: int = 100) -> list[DeadLetter]:
        """Dead letters of a group (or of any), oldest first."""
        require_text_or_none("group", group)
        require_limit(limit)
        return await self._operations.dead_letters(group, limit)

    @Verb
    async def resend(self, group: str, ids: Sequence[str] | None = None) -> int:
        """Resend dead letters (None: all) to their group; returns how many."""
        require_text("group", group)
        chosen = None if ids is None else texts_of("ids", ids)
        return await self._operations.resend_dead_letters(group, chosen)


class Admin(Namespace[K]):
    """`client.admin`: the broker as a whole."""

    @Verb
    async def hold(self, what: Held | str) -> Holds:
        """Hold the whole broker's `releases`, or `absorbing` (what its timer takes in), until resumed."""
        return await self._operations.hold(held_named(what))

    @Verb
    async def resume(self, what: Held | str) -> Holds:
        """End a hold of `releases` or `absorbing`; what fell due meanwhile goes at once."""
        return await self._operations.resume(held_named(what))

    @Verb
    async def advance(self, by: Span | None = None, *, to: Moment | None = None) -> int:
        """Move a simulated clock; returns the new time in Unix milliseconds."""
        return await self._operations.advance(optional_ms(by), optional_time(to))

    @Verb
    async def backup(self, directory: str) -> Backup:
        """Copy the live broker into a new directory on its machine."""
        require_text("directory", directory)
        return await self._operations.backup(directory)

    @Verb
    async def backup_progress(self) -> tuple[int, int]:
        """Bytes copied by the backup under way, and to copy; both 0 while there is none."""
        return await self._operations.backup_progress()

    @Verb
    async def damaged(self, *, limit: int = 100) -> list[DamagedMessage]:
        """Messages whose bytes in the broker's log are damaged; they are not delivered."""
        require_limit(limit)
        return await self._operations.damaged(limit)
