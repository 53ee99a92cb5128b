"""Finished pictures on disk, handed out by signed URL.

Keys are made of a render's id and a number, never of anything typed; every key is checked all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from pathlib import Path

from core.errors import InvalidInput, NotFound, StartupError

KEY = re.compile(r"renders/[A-Za-z0-9_-]{1,64}/(?:[0-9]{1,3}\.png|preview\.jpg)", re.ASCII)
CONTENT_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
SECRET_BYTES = 32


class DiskObjects:
    """Keys are renders/<id>/<k>.png and renders/<id>/preview.jpg; everything else is refused."""

    def __init__(self, root: Path, secret: bytes, public_url: str | None) -> None:
        self._root = Path(root).resolve()
        self._secret = secret
        self._public_url = (public_url or "").rstrip("/")

    def put(self, key: str, data: bytes, content_type: str) -> None:
        """Writes whole or not at all; an earlier object of that key is replaced.

        Raises: InvalidInput for a key or content type that is not ours.
        """
        path = self._place(key)
        if CONTENT_TYPES[path.suffix] != content_type:
            raise InvalidInput("content_type", f"{content_type} does not belong to {path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._place(key)  # again, now that its folders are there: none of them may lead outside
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        _sync_folder(path.parent)

    def open(self, key: str) -> Path:
        """The object's file.

        Raises: InvalidInput for a key that is not ours, NotFound when there is no such object.
        """
        path = self._place(key)
        if not path.is_file():
            raise NotFound("there is no such picture")
        return path

    def sign(self, key: str, ttl_s: float, now_s: float) -> str:
        """The object's URL (a path where no public URL is set), good until now_s + ttl_s.

        Raises: InvalidInput for a key that is not ours.
        """
        self._place(key)
        expires = int(now_s + ttl_s)
        return f"{self._public_url}/objects/{key}?expires={expires}&signature={self._signature(key, expires)}"

    def verify(self, key: str, expires: str | int, signature: str, now_s: float) -> None:
        """Checks what came with a URL.

        Raises: InvalidInput for a key, time or signature that is not ours, NotFound when the time is over.
        """
        self._place(key)
        if not re.fullmatch(r"[0-9]{1,15}", str(expires), re.ASCII):
            raise InvalidInput("expires", "is not a time")
        expected = self._signature(key, int(expires))
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise InvalidInput("signature", "does not belong to this link")
        if now_s > int(expires):
            raise NotFound("this link has expired")

    def _place(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise InvalidInput("key", "is not the name of a picture")
        path = self._root / key
        if path.resolve() != path:  # a link on the way: nothing of ours is one
            raise InvalidInput("key", "is not the name of a picture")
        return path

    def _signature(self, key: str, expires: int) -> str:
        return hmac.new(self._secret, f"{key}\n{expires}".encode(), hashlib.sha256).hexdigest()


def load_secret(data_dir: Path) -> bytes:
    """The secret that signs URLs, made once per data folder; only its user can read it.

    Raises: StartupError when the file is there but is no secret.
    """
    path = Path(data_dir) / "url-secret"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _make_secret(path)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise StartupError(f"{path} is damaged", "delete it; links handed out so far stop working")
    return secret


def _make_secret(path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".secret") as file:  # made with mode 0600
        file.write(secrets.token_bytes(SECRET_BYTES))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its secret counts
            os.link(file.name, path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
