"""What must be done now and then: checkpoints, retention, ballast, scrubs. One `step`, no thread."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.send.service import SendService
from tidemill.core.config import BrokerSettings
from tidemill.core.limits import MIB
from tidemill.store.message_store import MessageStore
from tidemill.store.upkeep.head_cut import cut_head
from tidemill.store.upkeep.log_scrub import LogScrub
from tidemill.store.upkeep.memory import give_back_memory, keep_memory_flat
from tidemill.store.upkeep.moving import MovedMessages

_EVERY_MS = 1_000
_CHECKPOINT_BYTES = 64 * MIB
_CHECKPOINT_EVERY_MS = 30_000
_CONSUMER_CHANGES_MAX = 100_000
_RETENTION_EVERY_MS = 60_000
_GIVE_BACK_EVERY_MS = 10_000
# For so long at most a large frame of the log is taken for right once it was verified.
_VERIFY_AGAIN_MS = 60_000
# Enough bytes of log since the last time to have left free memory behind.
_GIVE_BACK_BYTES = 16 * MIB


class Maintenance:
    """Keeps the data directory small and quick to open."""

    def __init__(
        self, store: MessageStore, sender: SendService, settings: BrokerSettings, boot_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._sender = sender
        self._settings = settings
        self._boot_ms = boot_ms
        self._checked_at_ms: int | None = None
        self._retained_at_ms = boot_ms()
        self._gave_back_at_ms = self._forgot_at_ms = self._scrubbed_at_ms = boot_ms()
        self._log_scrub = LogScrub(store)
        keep_memory_flat()
        self._gave_back_end = store.log.written_end
        self._is_worth_giving_back = True  # opening may have read much

    def step(self, now_ms: int) -> int:
        """Do what is due; periods are measured on the boot clock, which does not leap."""
        self._store.look_for_room()
        self._store.publish()  # what could not be published before, if no other call follows
        boot_ms = self._boot_ms()
        if boot_ms - self._retained_at_ms >= min(_RETENTION_EVERY_MS, self._settings.retention_ms):
            self._retained_at_ms = boot_ms
            self.retain(now_ms)
        if self._wants_checkpoint(boot_ms):
            self._checked_at_ms = boot_ms
            self._store.checkpoint()
        if boot_ms - self._gave_back_at_ms >= _GIVE_BACK_EVERY_MS:
            self._gave_back_at_ms = boot_ms
            self._give_back()
        if boot_ms - self._forgot_at_ms >= _VERIFY_AGAIN_MS:
            self._forgot_at_ms = boot_ms
            self._store.log.forget_verified()
        self._log_scrub.step(boot_ms)
        if boot_ms - self._scrubbed_at_ms >= _EVERY_MS or self._store.find.lost:
            self._scrubbed_at_ms = boot_ms
            if self._store.look_after_find():
                return now_ms
        return now_ms + _EVERY_MS

    def _give_back(self) -> None:
        """After much was written, and once more when that is over: the timer absorbs it a little later."""
        was_busy, end = self._is_worth_giving_back, self._store.log.written_end
        self._is_worth_giving_back = end - self._gave_back_end >= _GIVE_BACK_BYTES
        if was_busy or self._is_worth_giving_back:
            self._gave_back_end = end
            give_back_memory()

    def retain(self, now_ms: int) -> None:
        """Cut what is past retention; survivors that are due soon go to the releaser."""

        def hand_over(moved: MovedMessages) -> None:
            self._sender.hand_over(moved.deliver_at_ms, moved.appended.first_seq, moved.flags)

        cut_head(self._store, now_ms, self._sender.near_below_ms(now_ms), hand_over)

    def _wants_checkpoint(self, boot_ms: int) -> bool:
        store = self._store
        if self._checked_at_ms is None:
            self._checked_at_ms = boot_ms
        if store.bytes_since_checkpoint >= _CHECKPOINT_BYTES:
            return True
        if store.consumers.changes_since_checkpoint >= _CONSUMER_CHANGES_MAX:
            return True
        has_news = store.bytes_since_checkpoint > 0 or store.consumers.changes_since_checkpoint > 0
        return has_news and boot_ms - self._checked_at_ms >= _CHECKPOINT_EVERY_MS
