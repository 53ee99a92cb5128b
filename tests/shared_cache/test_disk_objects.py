"""What only pictures on disk have: whole files, links that lead elsewhere, a secret. test_objects has the rest."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from core.errors import InvalidInput, NotFound, StartupError, Unavailable
from core.settings import Settings
from shared_cache.objects import DiskObjects, load_secret, open_objects
from tests.telling import lines

KEY = "renders/0197-Ab_c/0.png"


@pytest.fixture
def objects(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "objects", b"s" * 32, None)


def signed(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return parts.path.removeprefix("/objects/"), query["expires"][0], query["signature"][0]


def refusing(number: int) -> Callable[[int], None]:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    ("number", "state", "words"),
    [
        (errno.ENOSPC, "is full", ("is full", "free space there")),
        (errno.EROFS, "cannot be written to", ("Read-only file system", "FIRSTLIGHT_DATA_DIR")),
    ],
)
def test_disk_that_takes_nothing_is_told_once_and_leaves_the_earlier_object(
    objects: DiskObjects,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    state: str,
    words: tuple[str, str],
) -> None:
    caplog.set_level(logging.INFO, "shared_cache")
    objects.put(KEY, b"whole", "image/png")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", refusing(number))
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"the store of the pictures {state}"):
                objects.put(KEY, b"other", "image/png")
    (told,) = lines(caplog, "shared_cache.outage")
    assert all(word in told for word in words)
    assert objects.open(KEY).read_bytes() == b"whole"
    assert [path.name for path in objects.open(KEY).parent.iterdir()] == ["0.png"]
    objects.put(KEY, b"later", "image/png")
    assert objects.get(KEY) == b"later" and lines(caplog, "shared_cache.outage")[1:] == [
        "pictures can be stored again after 0 s"
    ]


def test_data_folder_that_cannot_be_written_is_named_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refusing(errno.ENOSPC))
    with pytest.raises(StartupError, match="is full") as caught:
        open_objects(Settings(data_dir=tmp_path), writes=True)
    assert str(tmp_path) in caught.value.cause and "free space" in caught.value.remedy


def test_readers_never_see_a_part_while_writers_replace(objects: DiskObjects) -> None:
    objects.put(KEY, b"0" * 100_000, "image/png")
    over, torn = threading.Event(), []

    def read() -> None:
        while not over.is_set():
            data = objects.open(KEY).read_bytes()
            if len(data) != 100_000 or len(set(data)) != 1:
                torn.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        objects.put(KEY, str(number % 10).encode() * 100_000, "image/png")
    over.set()
    reader.join()
    assert torn == []


@pytest.mark.parametrize(
    "key", ["", "../../etc/passwd", "renders/a/../0.png", "renders/a/0.png\n", "renders/\ud800/0.png"]
)
def test_key_that_is_not_ours_is_refused(objects: DiskObjects, key: str) -> None:
    for refused in (lambda: objects.open(key), lambda: objects.verify(key, "60", "0" * 64, 0)):
        with pytest.raises(InvalidInput):
            refused()


def test_link_that_leads_outside_is_refused(objects: DiskObjects, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0.png").write_bytes(b"secret")
    folder = tmp_path / "objects" / "renders"
    folder.mkdir(parents=True)
    (folder / "linked").symlink_to(outside)
    (folder / "real").mkdir()
    (folder / "real" / "0.png").symlink_to(outside / "0.png")
    for key in ("renders/linked/0.png", "renders/real/0.png"):
        with pytest.raises(InvalidInput):
            objects.open(key)
        with pytest.raises(InvalidInput):
            objects.put(key, b"x", "image/png")
    assert (outside / "0.png").read_bytes() == b"secret"


def test_link_is_good_until_its_time_is_over(objects: DiskObjects) -> None:
    key, expires, signature = signed(objects.sign(KEY, 100, 1000.0))
    assert key == KEY
    objects.verify(key, expires, signature, 1100.0)
    with pytest.raises(NotFound, match="expired"):
        objects.verify(key, expires, signature, 1100.5)


@pytest.mark.parametrize("signature", ["", "0" * 64, "ü", "\ud800", "None"])
def test_link_with_a_foreign_signature_is_refused(objects: DiskObjects, signature: str) -> None:
    with pytest.raises(InvalidInput, match="signature"):
        objects.verify(KEY, "1100", signature, 1000.0)


def test_signature_is_good_for_its_own_key_time_and_secret_only(objects: DiskObjects, tmp_path: Path) -> None:
    key, expires, signature = signed(objects.sign(KEY, 100, 1000.0))
    foreign = DiskObjects(tmp_path / "objects", b"t" * 32, None)
    changed = [
        (objects, "renders/0197-Ab_c/1.png", expires, signature),
        (objects, key, str(int(expires) + 1), signature),
        (objects, key, expires, signature[:-1]),
        (foreign, key, expires, signature),
    ]
    for verifier, named, until, by in changed:
        with pytest.raises(InvalidInput, match="signature"):
            verifier.verify(named, until, by, 1000.0)


@pytest.mark.parametrize("expires", ["", "-1", "1e9", "1100.0", " 1100", "٣٣", "9" * 40, "NaN"])
def test_link_with_a_broken_time_is_refused(objects: DiskObjects, expires: str) -> None:
    with pytest.raises(InvalidInput, match="expires"):
        objects.verify(KEY, expires, "0" * 64, 0)


def test_link_names_the_public_host_when_there_is_one(tmp_path: Path) -> None:
    public = DiskObjects(tmp_path, b"s" * 32, "https://pictures.example/app/")
    assert public.sign(KEY, 60, 0).startswith(f"https://pictures.example/app/objects/{KEY}?expires=60&signature=")


def test_secret_is_made_once_and_readable_by_its_user_alone(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(load_secret(tmp_path / "data"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found[0]) == 32
    (path,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(StartupError, match="delete it"):
        load_secret(tmp_path / "data")
