"""Behind a proxy that serves the app under a sub-path."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")

_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")

# Gradio names its manifest and the icon in it from the root. Each pair is of one length, so that headers stay true.
_FROM_ROOT = {
    "/": (b'href="/manifest.json"', b'href="manifest.json" '),
    "/manifest.json": (b'"src":"/pwa_icon"', b'"src":"pwa_icon" '),
}


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


def public_root(connection: HTTPConnection) -> str:
    """scheme://host and sub-path as whoever asks sees them, also where the proxy names another host to us."""
    url = connection.base_url
    host, scheme = (_first(connection.headers, f"x-forwarded-{part}") for part in ("host", "proto"))
    if _HOST.fullmatch(host):
        url = url.replace(netloc=host)
    if scheme in ("http", "https"):
        url = url.replace(scheme=scheme)
    return str(url).rstrip("/")


def _first(headers: Headers, name: str) -> str:
    """What the outermost of several proxies says."""
    return headers.get(name, "").partition(",")[0].strip()


class Manifest:
    """Has the page find its manifest, and that its icon, beside it; so they are found below a sub-path too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path not in _FROM_ROOT:
            return await self.app(scope, receive, send)

        async def send_beside(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": message.get("body", b"").replace(*_FROM_ROOT[path])}
            await send(message)

        await self.app(scope, receive, send_beside)
