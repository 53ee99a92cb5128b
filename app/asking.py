"""Asking the preview pool, and asking again when no answer comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from app.standing import Stand, Standing
from core.errors import Unavailable
from core.recipe import Recipe
from core.wire import PreviewRequest
from shared_cache.mailbox import Mailbox

REPOSTS = 3
ANSWER_TIMEOUT_S = 10.0

Argument = TypeVar("Argument")


@dataclass(frozen=True, slots=True)
class Asker:
    """Posts requests of one session. Units: timeout_s is the wait before a request is posted again; clock's, which the
    workers share, are seconds.

    What is posted and closed happens in that order, also when who waits for it is cancelled.
    """

    mailbox: Mailbox
    session: str
    owner: str
    reply_to: str
    clock: Callable[[], float]
    timeout_s: float = ANSWER_TIMEOUT_S
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def request(self, rev: int, recipe: Recipe) -> PreviewRequest:
        preview_id = uuid.uuid4().hex
        return PreviewRequest(self.session, self.owner, rev, preview_id, self.reply_to, self.clock(), recipe)

    async def post(self, request: PreviewRequest) -> None:
        await asyncio.shield(self._in_turn(self.mailbox.post, replace(request, sent_s=self.clock())))

    async def close(self) -> None:
        """Drops what waits and stops what runs for the session."""
        await asyncio.shield(self._in_turn(self.mailbox.close, self.session))

    async def _in_turn(self, call: Callable[[Argument], None], argument: Argument) -> None:
        async with self.turn:
            await asyncio.to_thread(call, argument)


def no_answer(found: Standing) -> Unavailable:
    """Why no preview came, by how the preview workers stand."""
    return Unavailable(found.reason or "no preview worker answered; try again in a few seconds")


def hopeless(found: Standing) -> bool:
    """Whether asking once more is in vain for now, since nobody hears it."""
    return found.stand in (Stand.WAITING, Stand.AWAY)
