"""Every verb of a client: the daily ones on the client itself, the others in namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidemill.client.change_verbs import ChangeVerbs
from tidemill.client.consume_verbs import ConsumeVerbs
from tidemill.client.look_verbs import LookVerbs
from tidemill.client.namespaces import Admin, DeadLetters, Groups, Topics
from tidemill.client.operations import Operations
from tidemill.client.send.drafts import jitter_ms_of
from tidemill.client.send.isolate_bad_message import unanswered
from tidemill.client.tables.scheduled import Scheduled
from tidemill.client.tables.table_verbs import Tables
from tidemill.client.transport.retrying import Patience, RetryPolicy, busy_ones
from tidemill.client.verb import K, Verb
from tidemill.core.durations import Span
from tidemill.core.errors import TidemillError
from tidemill.core.model import Draft, SendResult
from tidemill.core.send_answers import Answer


class Verbs(ConsumeVerbs[K], ChangeVerbs[K], LookVerbs[K]):
    """What a client offers besides `send`, which each kind of client has in its own, quickest way."""

    topics: Topics[K]
    groups: Groups[K]
    dead_letters: DeadLetters[K]
    tables: Tables[K]
    admin: Admin[K]

    def _offer(self, operations: Operations, *, awaits: bool) -> None:
        self._operations, self._awaits = operations, awaits
        self.topics, self.groups, self.dead_letters = Topics(self), Groups(self), DeadLetters(self)
        self.tables, self.admin = Tables(self), Admin(self)

    @Verb
    async def send_many(self, drafts: Iterable[Draft]) -> list[SendResult | TidemillError]:
        """Send many messages in as few requests as possible; each has its own answer, in order.

        What is wrong with one message is its answer and is not raised: check each with `isinstance`. An error
        that ends the call (the broker is busy, its disk is full, it is unreachable) is raised before the
        first answer; later it is the answer of each message that has none.
        """
        return await self._operations.send_many(drafts)

    @Verb
    async def schedule(
        self, table: Any, *, topic: str | None = None, jitter: Span | None = None
    ) -> Scheduled:
        """Send the rows of an Arrow table, a pandas frame or an iterable of mappings; each has its answer.

        Tables go through the broker's Flight endpoint where it has one, which is much faster. `jitter` is
        that of every row; a column `jitter_ms` gives each its own. Errors are answers as in `send_many`.
        """
        return await self._operations.schedule(table, topic, 0 if jitter is None else jitter_ms_of(jitter))


async def until_taken(
    drafts: Sequence[Draft],
    first: Sequence[Answer],
    policy: RetryPolicy,
    pause: Callable[[float], Awaitable[bool]],
    send_batch: Callable[[Sequence[Draft]], Awaitable[Sequence[Answer]]],
) -> list[Answer]:
    """Send again what was answered with a `BusyError`, until it is stored or the policy gives up.

    `pause` waits, and says whether the client was closed meanwhile.
    """
    answers, patience = list(first), Patience(policy)
    while again := busy_ones(answers):
        wait_s = patience.wait_s()
        if wait_s is None or await pause(wait_s):
            break
        these = [drafts[index] for index in again]
        try:
            answered = await send_batch(these)
        except TidemillError as fault:  # the others keep their answers
            answered = unanswered(fault, these)
        for index, answer in zip(again, answered, strict=True):
            answers[index] = answer
    return answers
