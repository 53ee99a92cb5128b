"""A model hub on this machine: the part of the hub's HTTP interface that fetching needs, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_BYTES = 2000  # larger files are kept as LFS objects, smaller ones in git


@dataclass
class Faults:
    """cut_after: bytes after which the next large answers break off, one each. forged: zeros are sent."""

    cut_after: list[int] = field(default_factory=list)
    forged: bool = False
    gated: bool = False


class HubServer:
    """Serves folders as repositories: hub id to folder and commit. Requests are kept as (path, Range)."""

    def __init__(self, repositories: dict[str, tuple[Path, str]]) -> None:
        self.repositories = repositories
        self.faults = Faults()
        self.requests: list[tuple[str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fetched(self) -> list[str]:
        """The files that were asked for, each once."""
        return sorted({path.split("/", 5)[5] for path, _ in self.requests if "/resolve/" in path})

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(to.path).path)
        self.requests.append((path, to.headers.get("Range")))
        if path.startswith("/cdn/"):
            return self._send_file(to, Path(path.removeprefix("/cdn")))
        words = path.strip("/").split("/")
        api = words[:2] == ["api", "models"]
        hub_id = "/".join(words[2:4] if api else words[:2])
        if hub_id not in self.repositories:
            return self._send(to, 404, {"X-Error-Code": "RepoNotFound"}, b"")
        if self.faults.gated:
            return self._send(to, 403, {"X-Error-Code": "GatedRepo"}, b"")
        folder, commit = self.repositories[hub_id]
        if api:
            return self._send(
                to, 200, {"Content-Type": "application/json"}, json.dumps(_info(hub_id, folder, commit)).encode()
            )
        file = folder / "/".join(words[4:])
        if file.stat().st_size > LFS_BYTES:
            return self._send(to, 302, {"Location": f"{self.url}/cdn{file}"}, b"")
        self._send_file(to, file)

    def _send_file(self, to: BaseHTTPRequestHandler, file: Path) -> None:
        data = file.read_bytes()
        if self.faults.forged:
            data = bytes(len(data))
        asked = to.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        headers = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if asked else {}
        cut = self.faults.cut_after.pop(0) if self.faults.cut_after and len(data) > LFS_BYTES else None
        self._send(to, 206 if asked else 200, headers, data[begin:], cut)

    def _send(
        self, to: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, cut: int | None = None
    ) -> None:
        to.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            to.close_connection = True


def _info(hub_id: str, folder: Path, commit: str) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    siblings = [_sibling(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]
    return {
        "id": hub_id,
        "modelId": hub_id,
        "sha": commit,
        "siblings": siblings,
        "cardData": {"license": "mit"},
        "tags": [],
    }


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    about = {"rfilename": name, "size": len(data), "blobId": blob_id}
    if len(data) > LFS_BYTES:
        about["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
    return about
