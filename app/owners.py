"""Who asks: a browser by its cookie, a program by its bearer token, everyone else as the shared owner."""

from __future__ import annotations

import hashlib
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import InvalidInput

COOKIE = "firstlight_owner"
SHARED = "local"
YEAR_S = 365 * 24 * 3600


def owner_of(connection: HTTPConnection) -> str:
    """A name that is safe in keys; secrets are hashed, so that no record holds one.

    Raises: InvalidInput for a bearer without a token, whose pictures would land among the shared owner's. What a proxy
    in front asks browsers for (Basic …) is not ours to read.
    """
    scheme, _, token = connection.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        if not token.strip():
            raise InvalidInput("authorization", "Bearer wants a token; leave the header out to be the shared owner")
        return f"token-{_digest(token.strip())}"
    cookie = connection.cookies.get(COOKIE)
    return f"browser-{_digest(cookie)}" if cookie else SHARED


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class OwnerCookie:
    """Gives a browser that opens the page without one its owner cookie."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _opens_page(scope):
            return await self.app(scope, receive, send)
        cookie = _new_cookie(scope)

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def _opens_page(scope: Scope) -> bool:
    path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
    return scope["method"] == "GET" and path == "/" and COOKIE not in HTTPConnection(scope).cookies


def _new_cookie(scope: Scope) -> str:
    path = scope.get("root_path") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{COOKIE}={secrets.token_urlsafe(24)}; Path={path}; Max-Age={YEAR_S}; HttpOnly; SameSite=Lax{secure}"
