"""No request body beyond MAX_BODY_BYTES gets into memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.bodies import MAX_BODY_BYTES
from app.errors import http_answer


class BodyLimit:
    """Reads a body before the app does and answers 413 where it is too large."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(Headers(scope=scope)):
            return await self.app(scope, receive, send)
        body = await self._read(Headers(scope=scope), receive)
        if body is None:
            return await http_answer(413)(scope, receive, send)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """None when there is more than may be."""
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > self._max_bytes:
            return None
        body, more = bytearray(), True
        while more and len(body) <= self._max_bytes:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)  # absent when the client has left
        return bytes(body) if len(body) <= self._max_bytes else None


def _has_body(headers: Headers) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
