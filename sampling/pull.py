"""Fetches models from the hub, a mirror of it, or a folder that was carried here, into the hub's own cache. No torch.

What was fetched in part is continued, and every file must have the checksum that the hub names. The library's own
download starts over after an interruption, so the transfer is ours; names, addresses and logins are the library's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from core.errors import StartupError, Unavailable
from sampling.hub import repository_folder
from sampling.layout import header_of
from sampling.needs import Needs, choose_files
from sampling.plan import Source

CHUNK_BYTES = 1 << 20
TRIES, PAUSE_S = 5, 1.0
TIMEOUT_S = 30.0
Told = Callable[[int], object]  # is told how many bytes are done since it was told last
OFFLINE = (
    "without the hub: name a mirror with HF_ENDPOINT; or carry a folder here (`hf download` on another machine, or its "
    "hub cache) and add --from FOLDER; or use the profile storybook, which is in the repository"
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. digest: its SHA-256, or for small files kept in git their blob's SHA-1."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Download:
    """What is to be fetched of one source. licence: what the repository itself says, None where it says nothing."""

    source: Source
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def missing(self) -> list[RemoteFile]:
        return [file for file in self.files if not self.blob(file).is_file()]

    @property
    def missing_bytes(self) -> int:
        return sum(file.size_bytes - _size(_partial(self.blob(file))) for file in self.missing)

    @property
    def folder(self) -> Path:
        assert self.source.hub is not None  # only what is on the hub is downloaded
        return repository_folder(self.source.hub)

    def blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.digest


def look_up(source: Source, needs: Needs) -> Download:
    """What the hub has of a source, of which only what is needed.

    Raises: Unavailable when the hub cannot be reached or wants a login; StartupError when it lacks something.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
    from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]  # whichever client it has

    assert source.hub is not None
    try:
        hub = HfApi(_endpoint())
        info = hub.model_info(source.hub, revision=source.revision, files_metadata=True, timeout=TIMEOUT_S)
    except GatedRepoError:
        raise _wants_login(source.hub) from None
    except RepositoryNotFoundError:
        raise Unavailable(f"the hub has no {source.hub}, or it is private: `hf auth login`, or HF_TOKEN") from None
    except (ClientError, OSError, OfflineModeIsEnabled) as error:
        raise Unavailable(f"the hub at {_endpoint()} cannot be reached: {_line(error)}; {OFFLINE}") from None
    known = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    chosen = choose_files(source, needs, known)
    files = tuple(_remote(name, known[name]) for name in chosen)
    licence = info.card_data.get("license") if info.card_data is not None else None
    return Download(source, str(info.sha), files, None if licence is None else str(licence))


def _wants_login(hub_id: str) -> Unavailable:
    page = f"https://huggingface.co/{hub_id}"
    return Unavailable(f"{hub_id} wants its licence accepted: do so at {page}, then `hf auth login` or set HF_TOKEN")


def _endpoint() -> str:
    from huggingface_hub.constants import ENDPOINT

    return str(ENDPOINT)


def _remote(name: str, sibling: Any) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
    if not digest or sibling.size is None:
        raise StartupError(f"the hub tells no checksum of {name}", "ask a mirror that does; HF_ENDPOINT names it")
    return RemoteFile(name, int(sibling.size), str(digest))


def fetch(download: Download, told: Told) -> Path:
    """Fetches what is missing, checks all of it, and lays it out as a snapshot of the cache, whose folder it returns.

    Raises: Unavailable when the hub goes away or sends something else; what was fetched is kept for the next try.
    """
    for file in download.files:
        blob = download.blob(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        if blob.is_file() and digest_of(blob, len(file.digest)) != file.digest:
            blob.unlink()  # damaged on this disk
        if not blob.is_file():
            _fetch_one(download, file, told)
    return _lay_out(download)


def _fetch_one(download: Download, file: RemoteFile, told: Told) -> None:
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # its documentation names it

    assert download.source.hub is not None
    blob = download.blob(file)
    url = f"{_endpoint()}/{download.source.hub}/resolve/{download.commit}/{quote(file.name)}"
    headers = build_hf_headers()
    for tried in range(1, TRIES + 1):
        try:
            _continue(url, headers, _partial(blob), file, told)
            break
        except (httpx.HTTPError, OSError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise _wants_login(download.source.hub) from None
            if tried == TRIES or not _may_pass(error):
                cause = f"{file.name} of {download.source.hub}: {_line(error)}"
                raise Unavailable(f"{cause}; pull again to go on from there") from None
            time.sleep(PAUSE_S)
    if digest_of(_partial(blob), len(file.digest)) != file.digest:
        _partial(blob).unlink()
        raise Unavailable(f"{file.name} of {download.source.hub} came with another checksum than the hub names")
    _partial(blob).rename(blob)


def _may_pass(error: Exception) -> bool:
    """Whether another try may go better: not where the server said no, or the disk."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, httpx.HTTPError)


def _continue(url: str, headers: dict[str, str], partial: Path, file: RemoteFile, told: Told) -> None:
    """From where the last try ended."""
    have = _size(partial)
    if have == file.size_bytes:
        return
    asked = {**headers, "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with httpx.stream("GET", url, headers=asked, follow_redirects=True, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        again = have > 0 and response.status_code == httpx.codes.PARTIAL_CONTENT
        if have and not again:
            told(-have)
        with partial.open("ab" if again else "wb") as target:
            for chunk in response.iter_bytes(CHUNK_BYTES):
                target.write(chunk)
                told(len(chunk))
    if _size(partial) < file.size_bytes:
        raise httpx.RemoteProtocolError("the answer ended early")


def digest_of(path: Path, digits: int = 64, told: Told | None = None) -> str:
    """SHA-256, or with 40 digits git's SHA-1 of a blob."""
    digest = (
        hashlib.sha256() if digits == 64 else hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    )
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if told is not None:
                told(len(chunk))
    return digest.hexdigest()


def _lay_out(download: Download) -> Path:
    """As the cache's documentation says, so that other programs find what we fetched, and we what they did."""
    snapshot = download.folder / "snapshots" / download.commit
    for file in download.files:
        _link(snapshot / file.name, download.blob(file))
    if download.source.revision != download.commit:
        reference = download.folder / "refs" / download.source.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(download.commit)
    return snapshot


def _link(path: Path, blob: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    path.symlink_to(os.path.relpath(blob, path.parent))


def take(source: Source, needs: Needs, folder: Path, told: Told) -> Path:
    """Copies a source's files from a folder that was carried here into the cache.

    Raises: StartupError when the folder does not hold them whole.
    """
    found = carried(source, folder)
    names = [path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()]
    files = []
    for name in choose_files(source, needs, names):
        path = found / name
        if name.endswith(".safetensors"):
            header_of(path)
        files.append(RemoteFile(name, path.stat().st_size, digest_of(path, told=told)))
        named = path.resolve().name if path.is_symlink() else ""
        if len(named) == 64 and named != files[-1].digest:
            raise StartupError(f"{path} is damaged: its content is not what its name says", "carry it here again")
    commit = found.name if found.parent.name == "snapshots" else source.revision
    download = Download(source, commit, tuple(files))
    for file in download.missing:
        partial = _partial(download.blob(file))
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found / file.name, partial)
        partial.rename(download.blob(file))
    return _lay_out(download)


def carried(source: Source, folder: Path) -> Path:
    """Where a folder holds a source: a hub cache, folders named as the repositories are, or the files themselves.

    Raises: StartupError when it is in none of these places.
    """
    assert source.hub is not None
    places = list(_places(source.hub, source.revision, folder))
    for place in places:
        if any(place.glob("*.safetensors")) or (place / "model_index.json").is_file():
            return place
    tried = ", ".join(str(place) for place in places)
    raise StartupError(f"{folder} does not hold {source.hub}", f"put it into one of {tried}")


def _places(hub_id: str, revision: str, folder: Path) -> Iterator[Path]:
    cached = folder / f"models--{hub_id.replace('/', '--')}"
    reference = cached / "refs" / revision
    yield cached / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision)
    yield folder / hub_id
    yield folder / hub_id.rpartition("/")[2]


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
