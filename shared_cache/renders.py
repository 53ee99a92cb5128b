"""Records of renders and every change of their state.

Invariants: a render ends once, in one terminal state; only the attempt that the record names may write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis

from core.errors import Conflict, NotFound, Overloaded, OverQuota
from core.render import TERMINAL, State
from shared_cache import keys, queue_scripts, scripts
from shared_cache.lanes import FINAL_GROUP, Entry
from shared_cache.queue import Room
from shared_cache.records import Record, decode, encode, encode_changes

log = logging.getLogger(__name__)
__all__ = ["Record", "Renders"]
KEY_REUSED = "this Idempotency-Key was used for another request"
IDEMPOTENCY_TTL_S = 24 * 3600
PAYLOAD_TTL_S = 3600
RETRY_S = 1.0
LACKING = {
    b"full": (Overloaded, "the last place was taken in this moment"),
    b"quota": (OverQuota, "as many of yours wait as one may have; cancel some or wait"),
}
REPAIRED = 250  # renders that are looked at in one call of repair


class Renders:
    """The one owner of `fl:render:*` and of the queue's index."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._create = client.register_script(scripts.CREATE)
        self._claim = client.register_script(scripts.CLAIM)
        self._change = client.register_script(scripts.CHANGE)
        self._progress = client.register_script(scripts.PROGRESS)
        self._cancel = client.register_script(scripts.CANCEL)
        self._repair = client.register_script(queue_scripts.REPAIR)
        self._hand_over = client.register_script(scripts.HAND_OVER)

    def create(
        self, record: Record, lane: str, idempotency: tuple[str, str] | None = None, room: Room | None = None
    ) -> Record:
        """Writes record, owner's index, queue, lane entry and event at once; idempotency is (key, hash of the body).

        A key that the owner used before returns that render. A record that is terminal already is not queued.
        Raises: Conflict when the key was used with another body; Overloaded and OverQuota when room is given and there
        is none.
        """
        key, body_hash = idempotency or ("", "")
        idem = keys.idempotency(record.owner, key) if key else ""
        head = [record.id, record.owner, repr(record.created_s), keys.stream(lane), FINAL_GROUP, idem, body_hash]
        place = [repr(record.work_s), "" if record.due_s is None else repr(record.due_s)]
        bounds = ["", ""] if room is None else [room.total, room.owner]
        outcome, flat = self._create(args=[*head, IDEMPOTENCY_TTL_S, *place, *bounds, *encode(record)])
        if outcome == b"conflict":
            raise Conflict(KEY_REUSED, field="Idempotency-Key")
        if outcome in LACKING:
            kind, why = LACKING[outcome]
            raise kind(why, retry_after_s=RETRY_S, predicted_s=record.predicted_s)
        return decode(flat) or record

    def get(self, render_id: str) -> Record | None:
        return self._records([render_id])[0]

    def claim(self, render_id: str, max_attempts: int, state: State = State.RUNNING) -> Record | None:
        """Begins an attempt; None when the render is gone or over, or was failed now for too many attempts.

        A later stage that takes an entry over claims too, with its own state: that fences the slow holder.
        """
        return decode(self._claim(args=[render_id, max_attempts, state.value]))

    def advance(self, render_id: str, attempt: int, state: State, **fields: Any) -> bool:
        """Changes state and fields; timings_ms and handoff are merged. False when fenced or over.

        Raises: TypeError for an unknown field.
        """
        return bool(self._change(args=[render_id, attempt, state.value, *encode_changes(fields)]))

    def progress(self, render_id: str, attempt: int, step: int, batch_size: int) -> bool:
        """Notes a finished step; False means stop: cancelled, over, gone or fenced."""
        return self.progress_many([(render_id, attempt, step, batch_size)])[0]

    def progress_many(self, steps: Sequence[tuple[str, int, int, int]]) -> list[bool]:
        """progress for many in one round trip; each is (render_id, attempt, step, batch_size)."""
        if not steps:
            return []
        return [bool(wanted) for wanted in self._progress(args=[field for step in steps for field in step])]

    def cancel(self, render_id: str) -> tuple[Record, bool]:
        """Cancels at once wherever the render is; the record, and whether it was this call that ended it.

        Again, or after the end, changes nothing. Raises: NotFound.
        """
        ended, flat = self._cancel(args=[render_id])
        record = decode(flat)
        if record is None:
            raise NotFound(f"there is no render {render_id}")
        return record, bool(ended)

    def finish(self, render_id: str, attempt: int, state: State, **fields: Any) -> bool:
        """As advance, into a terminal state; the entry is acknowledged with it.

        Raises: ValueError when the state is not terminal.
        """
        if state not in TERMINAL:
            raise ValueError(f"{state} is not terminal")
        return self.advance(render_id, attempt, state, **fields)

    def hand_over(
        self,
        entry: Entry,
        attempt: int,
        next_stage: str,
        state: State,
        payload_key: str,
        payload: bytes,
        fields: Mapping[str, Any] | None = None,
    ) -> bool:
        """Writes state and payload, adds the next stage's entry and acknowledges the old one, all at once.

        The same hand-over again returns True and changes nothing; False when fenced or over.
        """
        head = (entry.render_id, attempt, state.value, keys.stream(next_stage), next_stage, keys.latents(payload_key))
        return bool(self._hand_over(args=(*head, payload, PAYLOAD_TTL_S, *encode_changes(fields or {}))))

    def repair(self, limit: int = REPAIRED, every_s: float = 0.0) -> list[str]:
        """Gives renders that have not ended what they lost: an entry, a place in the queue; returns those ids.

        Looks at the next limit of them, once in every_s for all processes that call it: so it costs the same however
        many wait, and however many workers there are.
        """
        mended = [render_id.decode() for render_id in self._repair(args=[limit, int(1000 * every_s)])]
        if mended:
            log.warning("renders that had lost their entry were queued again: %s", ", ".join(mended))
        return mended

    def overdue(self, now_s: float, limit: int = 100) -> list[Record]:
        """Renders whose deadline has passed and that have not ended."""
        ids = cast(list[bytes], self._client.zrangebyscore(keys.DUE, "-inf", now_s, start=0, num=limit))
        return [record for record in self._records([name.decode() for name in ids]) if record is not None]

    def find(self, owner: str, idempotency: tuple[str, str]) -> Record | None:
        """The render that the owner made with this (key, hash of the body) before.

        Raises: Conflict when the key was used with another body.
        """
        idem = keys.idempotency(owner, idempotency[0])
        known = cast("list[bytes | None]", self._client.hmget(idem, "id", "hash"))
        render_id, body_hash = (None if text is None else text.decode() for text in known)
        record = None if render_id is None else self.get(render_id)
        if record is not None and body_hash != idempotency[1]:
            raise Conflict(KEY_REUSED, field="Idempotency-Key")
        return record

    def unfinished(self, limit: int = 0) -> list[Record]:
        """Renders that have not ended, in order of creation: the first of them, or all where no limit is given."""
        ids = cast(list[bytes], self._client.zrange(keys.OPEN, 0, limit - 1))
        return [record for record in self._records([name.decode() for name in ids]) if record is not None]

    def position(self, render_id: str) -> int | None:
        """How many queued renders go before it; None when it is not queued."""
        rank = self._client.zrank(keys.QUEUE, render_id)
        return None if rank is None else cast(int, rank)

    def history(self, owner: str, limit: int, before_s: float | None = None) -> list[Record]:
        """The owner's renders created before before_s, newest first."""
        newest = "+inf" if before_s is None else f"({before_s!r}"
        index = keys.renders(owner)
        found = cast(list[bytes], self._client.zrevrangebyscore(index, newest, "-inf", start=0, num=limit))
        ids = [render_id.decode() for render_id in found]
        records = self._records(ids)
        gone = [render_id for render_id, record in zip(ids, records, strict=True) if record is None]
        if gone:  # expired records leave their owner's index here
            self._client.zrem(index, *gone)
        return [record for record in records if record is not None]

    def _records(self, ids: Sequence[str]) -> list[Record | None]:
        if not ids:
            return []
        with self._client.pipeline(transaction=False) as pipe:
            for render_id in ids:
                pipe.hgetall(keys.render(render_id))
            return [decode([text for pair in found.items() for text in pair]) for found in pipe.execute()]
