"""Finished pictures, handed out by signed URL: on disk here, in S3 by s3_objects.

Keys are made of a render's id and a number, never of anything typed; every key is checked all the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Protocol

from core.errors import InvalidInput, NotFound, StartupError
from core.settings import Settings
from shared_cache.outage import PICTURES, Fault, Outage, StoreAway

KEY = re.compile(r"renders/[A-Za-z0-9_-]{1,64}/(?:[0-9]{1,3}\.png|preview\.jpg)", re.ASCII)
CONTENT_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
SECRET_BYTES = 32


class Objects(Protocol):
    """Keys are renders/<id>/<k>.png and renders/<id>/preview.jpg; everything else is InvalidInput.

    Raises: Unavailable from put and get when the store cannot be reached, or refuses; the same call may work later.
    """

    def put(self, key: str, data: bytes, content_type: str) -> None:
        """Writes whole or not at all; an earlier object of that key is replaced.

        Raises: InvalidInput for a content type that is not ours.
        """

    def get(self, key: str) -> bytes:
        """Raises: NotFound when there is no such object."""

    def sign(self, key: str, ttl_s: float, now_s: float, download: bool = False) -> str:
        """The object's URL, good until now_s + ttl_s: a path of the app's, or an address elsewhere.

        The same arguments give the same URL. A browser shows what it finds there, or saves it when it is a download.
        """


def open_objects(settings: Settings, writes: bool) -> Objects:
    """The store that the settings name; S3 is tried out, and for a process that writes also written to.

    Raises: StartupError when it cannot be used.
    """
    if settings.s3_bucket is None:
        return _open_disk(settings)
    from shared_cache.s3_objects import open_s3  # brings boto3, which takes a while and which the disk does not need

    return open_s3(settings, writes)


def _open_disk(settings: Settings) -> DiskObjects:
    try:
        secret = load_secret(settings.data_dir)
    except OSError as error:
        fault = explain(error, settings.data_dir)
        raise StartupError(fault.cause, fault.remedy) from error
    return DiskObjects(settings.data_dir / "objects", secret, settings.public_url)


def check_key(key: str) -> None:
    """Raises: InvalidInput for a key that is not ours."""
    if not KEY.fullmatch(key):
        raise InvalidInput("key", "is not the name of a picture")


def check_content_type(key: str, content_type: str) -> None:
    """Raises: InvalidInput for a key that is not ours, or a type that is not its own."""
    check_key(key)
    if content_type_of(key) != content_type:
        raise InvalidInput("content_type", f"{content_type} does not belong to {key.rpartition('/')[2]}")


def content_type_of(key: str) -> str:
    return CONTENT_TYPES[key[-4:]]


def disposition(key: str, download: bool) -> str:
    """Content-Disposition: the file's name has letters, digits, dots and dashes only."""
    name = "firstlight-" + re.sub(r"[^A-Za-z0-9.-]+", "-", key.removeprefix("renders/")).strip("-.")[-80:]
    return f'{"attachment" if download else "inline"}; filename="{name}"'


class DiskObjects:
    """One folder. Several machines that use it must share the file system and the secret."""

    def __init__(self, root: Path, secret: bytes, public_url: str | None) -> None:
        self._root = Path(root).resolve()
        self._secret = secret
        self._public_url = (public_url or "").rstrip("/")
        self._outage = Outage(*PICTURES)

    def put(self, key: str, data: bytes, content_type: str) -> None:
        check_content_type(key, content_type)
        path = self._place(key)
        try:
            self._write(key, path, data)
        except OSError as error:
            raise self._away(error) from error
        self._outage.worked()

    def _write(self, key: str, path: Path, data: bytes) -> None:
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

    def get(self, key: str) -> bytes:
        path = self.open(key)
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._away(error) from error

    def open(self, key: str) -> Path:
        """The object's file.

        Raises: InvalidInput for a key that is not ours, NotFound when there is no such object.
        """
        path = self._place(key)
        if not path.is_file():
            raise NotFound("there is no such picture")
        return path

    def sign(self, key: str, ttl_s: float, now_s: float, download: bool = False) -> str:
        """A path where no public URL is set. That it is a download stands beside the signature, as it tells nothing."""
        self._place(key)
        expires = int(now_s + ttl_s)
        signed = f"expires={expires}&signature={self._signature(key, expires)}"
        return f"{self._public_url}/objects/{key}?{signed}{'&download=1' if download else ''}"

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

    def _away(self, error: OSError) -> StoreAway:
        fault = explain(error, self._root)
        self._outage.failed(fault)
        return StoreAway(fault)

    def _place(self, key: str) -> Path:
        check_key(key)
        path = self._root / key
        if path.resolve() != path:  # a link on the way: nothing of ours is one
            raise InvalidInput("key", "is not the name of a picture")
        return path

    def _signature(self, key: str, expires: int) -> str:
        return hmac.new(self._secret, f"{key}\n{expires}".encode(), hashlib.sha256).hexdigest()


def explain(error: OSError, folder: Path) -> Fault:
    """Of an error of the disk's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fault(f"the disk that holds {folder} is full", "free space there, or keep pictures in S3", "is full")
    allow = f"let this process write to {folder}, or name another folder with FIRSTLIGHT_DATA_DIR"
    return Fault(f"{folder} cannot be used: {error.strerror}", allow, "cannot be written to")


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
