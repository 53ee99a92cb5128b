"""Behind a proxy that serves the app under a sub-path."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")


class SubPath:
    """Takes the sub-path from X-Forwarded-Prefix, else from the settings; the proxy may strip it or not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        root_path = self._root_of(Headers(scope=scope))
        path = scope["path"]
        if root_path and path == root_path and scope["type"] == "http":
            return await RedirectResponse(f"{root_path}/", 307)(scope, receive, send)
        if root_path and not path.startswith(f"{root_path}/"):
            path = root_path + path  # the proxy stripped it; ASGI wants the whole path
        await self.app({**scope, "root_path": root_path, "path": path, "raw_path": None}, receive, send)

    def _root_of(self, headers: Headers) -> str:
        asked = headers.get("x-forwarded-prefix", "").rstrip("/")
        return asked if _PREFIX.fullmatch(asked) else self._root_path
