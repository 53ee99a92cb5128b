"""What both stores of pictures promise, the disk's and S3's, each behind what serves its URLs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import errors, wants
from app import objects as route
from benchmarks.s3_server import BUCKET, S3Server
from core.errors import InvalidInput, NotFound
from core.settings import Settings
from shared_cache.objects import DiskObjects, Objects, disposition, open_objects

KEY, PREVIEW = "renders/0197-Ab_c/0.png", "renders/0197-Ab_c/preview.jpg"
REFUSED = (403, 404, 422)


@dataclass(frozen=True, slots=True)
class Store:
    """fetch is a browser's GET."""

    objects: Objects
    fetch: Callable[[str], httpx.Response]


def on_disk(folder: Path) -> Store:
    objects = open_objects(Settings(data_dir=folder), writes=True)
    app = FastAPI()
    app.include_router(route.router)
    errors.install(app)
    app.dependency_overrides[wants._context] = lambda: SimpleNamespace(objects=objects)
    return Store(objects, TestClient(app).get)


def in_s3(server: S3Server) -> Store:
    settings = Settings(
        s3_bucket=BUCKET,
        s3_endpoint=server.endpoint,
        s3_public_endpoint=server.public_endpoint,
        s3_prefix=f"{uuid.uuid4().hex}/",
    )
    return Store(open_objects(settings, writes=True), lambda url: httpx.get(url, trust_env=False))


@pytest.fixture(params=["disk", "s3"], scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "disk":
        yield on_disk(tmp_path_factory.mktemp("disk"))
        return
    server: S3Server = request.getfixturevalue("s3_server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.login().items():
            patch.setenv(name, value)
        yield in_s3(server)


def lifetime_s(url: str, now_s: float) -> float:
    query = parse_qs(urlsplit(url).query)
    return int(query["X-Amz-Expires"][0]) if "X-Amz-Expires" in query else int(query["expires"][0]) - now_s


def test_object_is_read_back_and_replaced_whole(store: Store) -> None:
    for data in (b"first", b"second picture" * 50_000):
        store.objects.put(KEY, data, "image/png")
        assert store.objects.get(KEY) == data
    store.objects.put(PREVIEW, b"j", "image/jpeg")
    assert (store.objects.get(PREVIEW), len(store.objects.get(KEY))) == (b"j", 700_000)


def test_missing_object_is_not_found(store: Store) -> None:
    missing = "renders/missing/0.png"
    with pytest.raises(NotFound):
        store.objects.get(missing)
    assert store.fetch(store.objects.sign(missing, 60, time())).status_code == 404


@pytest.mark.parametrize(
    "key",
    [
        "", "..", "../../etc/passwd", "/etc/passwd", "renders/../../x/0.png", "renders/a/../0.png", "renders/./0.png",
        "renders/%2e%2e/0.png", "renders/a%2f/0.png", "renders/a/0.png\0", "renders/a\0/0.png", "renders/a/0.png\n",
        "renders//0.png", "renders/a/0.PNG", "renders/a/0.svg", "renders/a/.png", "renders/a/-1.png", "renders/a/b.png",
        "renders/a/٣.png", "renders/テスト/0.png", "renders/a/b/0.png", "renders\\a\\0.png", "renders/a/0.png/",
        "renders/" + "a" * 65 + "/0.png", "previews/a/0.png", "renders/\ud800/0.png", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_key_that_is_not_ours_is_refused_everywhere(store: Store, key: str) -> None:
    for refused in (
        lambda: store.objects.put(key, b"x", "image/png"),
        lambda: store.objects.get(key),
        lambda: store.objects.sign(key, 60, 0),
    ):
        with pytest.raises(InvalidInput):
            refused()


@pytest.mark.parametrize("content_type", ["image/svg+xml", "text/html", "image/jpeg"])
def test_content_type_must_fit_the_key(store: Store, content_type: str) -> None:
    with pytest.raises(InvalidInput, match="content_type"):
        store.objects.put(KEY, b"<svg>", content_type)


def test_objects_are_put_by_many_threads_at_once(store: Store) -> None:
    keys = [f"renders/r{number}/0.png" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.objects.put(key, key.encode(), "image/png"), keys))
        assert list(pool.map(store.objects.get, keys)) == [key.encode() for key in keys]


def test_link_lasts_as_long_as_asked_each_time(store: Store) -> None:
    assert [lifetime_s(store.objects.sign(KEY, ttl_s, 1000.0), 1000.0) for ttl_s in (100, 200, 100)] == [100, 200, 100]


def test_link_is_the_same_as_long_as_its_arguments_are(store: Store) -> None:
    now_s = time()
    first, again, later = (store.objects.sign(KEY, 60, at_s) for at_s in (now_s, now_s, now_s + 300))
    assert first == again and first != later and first != store.objects.sign(PREVIEW, 60, now_s)


@pytest.mark.parametrize("shown", ["inline", "attachment"])
def test_link_gives_the_picture_with_its_type_and_a_plain_file_name(store: Store, shown: str) -> None:
    store.objects.put(KEY, b"png bytes", "image/png")
    answer = store.fetch(store.objects.sign(KEY, 60, time(), download=shown == "attachment"))
    assert (answer.status_code, answer.content) == (200, b"png bytes")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == f'{shown}; filename="firstlight-0197-Ab-c-0.png"'
    assert answer.headers["cache-control"].startswith("private, max-age=")


def test_link_is_refused_when_its_time_is_over(store: Store) -> None:
    store.objects.put(KEY, b"png bytes", "image/png")
    now_s = time()
    assert store.fetch(store.objects.sign(KEY, 360, now_s - 300)).status_code == 200
    assert store.fetch(store.objects.sign(KEY, 60, now_s - 62)).status_code in REFUSED


@pytest.mark.parametrize("change", ["signature", "key", "time"])
def test_tampered_link_is_refused(store: Store, change: str) -> None:
    for key in (KEY, PREVIEW):
        store.objects.put(key, b"bytes", "image/png" if key == KEY else "image/jpeg")
    url = store.objects.sign(KEY, 60, time())
    other = store.objects.sign(KEY, 61, time() + 300)
    parts, parts_of_other = parse_qs(urlsplit(url).query), parse_qs(urlsplit(other).query)
    name = {"signature": "ignature", "key": "", "time": "xpires"}[change]
    if change == "key":
        tampered = url.replace(KEY, PREVIEW)
    else:
        field = next(field for field in parts if field.endswith(name))
        tampered = url.replace(f"{field}={parts[field][0]}", f"{field}={parts_of_other[field][0]}")
    assert tampered != url
    assert store.fetch(tampered).status_code in REFUSED
    assert store.fetch(url).status_code == 200


def test_file_name_is_plain() -> None:
    assert disposition('renders/a"\r\nb/0.png', download=False) == 'inline; filename="firstlight-a-b-0.png"'


def test_disk_is_the_store_where_no_bucket_is_named(tmp_path: Path) -> None:
    assert isinstance(open_objects(Settings(data_dir=tmp_path), writes=False), DiskObjects)
