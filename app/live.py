"""The live socket: what stands in the box comes in, pictures of it go out, never an older one after a newer."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from redis.exceptions import RedisError

from app.asking import REPOSTS, Asker, hopeless, no_answer
from app.bodies import MAX_BODY_BYTES, LiveBody, parse_body, parse_json
from app.context import Context, context_of
from app.errors import error_body, queue_away
from app.owners import owner_of
from app.recipes import random_seed
from core.errors import BlockedPrompt, FirstlightError, InvalidInput
from core.wire import PreviewRequest, pack_frame

log = logging.getLogger(__name__)
router = APIRouter()

MAX_REV = 2**53 - 1
POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1


@router.websocket("/api/v1/live")
async def live(socket: WebSocket) -> None:
    """One session a connection."""
    context = context_of(socket)
    await socket.accept()
    try:
        owner = owner_of(socket)
    except InvalidInput as error:
        return await socket.close(POLICY_VIOLATION, error.message)
    session = LiveSession(context, socket, owner)
    await session.run()


class LiveSession:
    """State of one connection; all of it lives on the event loop.

    waiting is the newest request until it is answered; nothing of a rev below settled is sent any more.
    """

    def __init__(self, context: Context, socket: WebSocket, owner: str) -> None:
        name = uuid.uuid4().hex
        self._context = context
        self._socket = socket
        self._asker = Asker(
            context.mailbox, name, owner, context.router.reply_to, context.clock, context.answer_timeout_s
        )
        self._seed = random_seed(context.profile.limits)
        self._newest = self._settled = -1  # below every rev
        self._waiting: PreviewRequest | None = None
        self._tries = 0
        self._asked_s = 0.0
        self._frame: tuple[dict[str, Any], bytes] | None = None
        self._arrived = asyncio.Event()
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Until the client leaves or the connection breaks."""
        self._context.router.listen(self._asker.session, self._deliver)
        tasks = [asyncio.create_task(job()) for job in (self._read, self._write, self._insist)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._context.router.forget(self._asker.session)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, (WebSocketDisconnect, RuntimeError)):
                log.error("live session %s ended", self._asker.session, exc_info=error)

    async def _leave(self) -> None:
        with suppress(RedisError):
            await self._asker.close()

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._heard(message.get("text"))

    async def _heard(self, text: str | None) -> None:
        """One text of the client becomes a posted request or an error."""
        rev: int | None = None
        try:
            fields = _fields_of(text)
            rev = self._newer_rev(fields)
            _check_length(text)
            body = parse_body(LiveBody, fields)
            await self._ask(self._asker.request(body.rev, self._context.recipes.for_preview(body, self._seed)))
        except FirstlightError as error:
            await self._refuse(rev, error)
        except RedisError as error:
            await self._refuse(rev, queue_away(error))

    def _newer_rev(self, fields: dict[str, Any]) -> int | None:
        """The rev if it is a number; from here on it is the newest.

        Raises: InvalidInput for one that does not grow.
        """
        rev = fields.get("rev")
        if type(rev) is not int:
            return None  # parse_body says what is wrong with it
        if not self._newest < rev <= MAX_REV:
            raise InvalidInput("rev", f"must grow with every text; {self._newest + 1}…{MAX_REV} is free")
        self._newest = rev
        return rev

    async def _ask(self, request: PreviewRequest) -> None:
        self._waiting, self._tries, self._asked_s = request, 0, time.monotonic()
        await self._asker.post(request)

    async def _refuse(self, rev: int | None, error: FirstlightError) -> None:
        if rev is not None:
            self._waiting = None
            self._settled = max(self._settled, rev)
        word = "blocked" if isinstance(error, BlockedPrompt) else "error"
        await self._send_json({"rev": rev, word: error_body(error)})

    def _deliver(self, header: dict[str, Any], payload: bytes) -> None:
        """A frame of the preview pool: kept if no newer rev was answered, in place of one not sent yet."""
        rev = header["rev"]
        if rev < self._settled:
            return
        self._settled = rev
        if self._waiting is not None and rev >= self._waiting.rev:
            self._waiting = None
        self._frame = (header, payload)
        self._arrived.set()

    async def _write(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            async with self._sending:
                frame, self._frame = self._frame, None
                if frame is not None and frame[0]["rev"] >= self._settled:
                    await self._send_frame(*frame)

    async def _send_frame(self, header: dict[str, Any], payload: bytes) -> None:
        if payload:
            await self._socket.send_bytes(pack_frame(header, payload))
        else:
            await self._socket.send_json(header)

    async def _send_json(self, fields: dict[str, Any]) -> None:
        async with self._sending:
            await self._socket.send_json(fields)

    async def _insist(self) -> None:
        """Posts the newest request again while nobody answers, REPOSTS times at most; gives up where nobody is."""
        timeout_s = self._asker.timeout_s
        while True:
            await asyncio.sleep(timeout_s / 10)
            late = self._waiting
            if late is None or time.monotonic() - self._asked_s < timeout_s:
                continue
            found = await asyncio.to_thread(self._context.previewers)
            if late is not self._waiting:
                continue  # answered, or replaced by a newer one, while we looked
            if self._tries == REPOSTS or hopeless(found):
                await self._refuse(late.rev, no_answer(found))
            else:
                self._tries += 1
                self._asked_s = time.monotonic()
                await self._post_again(late)

    async def _post_again(self, request: PreviewRequest) -> None:
        with suppress(RedisError):
            await self._asker.post(request)


def _fields_of(text: str | None) -> dict[str, Any]:
    if text is None:
        raise InvalidInput("body", "must be text, not bytes")
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise InvalidInput("body", "must be a JSON object")
    return fields


def _check_length(text: str | None) -> None:
    """After its rev was read, so that the answer carries it; serve lets no message in that is long to parse."""
    if text is not None and len(text) > MAX_BODY_BYTES:
        raise InvalidInput("body", f"has {len(text)} characters, at most {MAX_BODY_BYTES} are read")
