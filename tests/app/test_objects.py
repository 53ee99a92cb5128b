"""Pictures by signed URL: headers, tampering, expiry, names that reach for other files."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.app.conftest import Web

KEY = "renders/abc/0.png"


@pytest.fixture
def url(web: Web) -> str:
    web.context.objects.put(KEY, b"png bytes", "image/png")
    return web.context.objects.sign(KEY, 60, time.time())


def test_signed_url_gives_the_picture_and_its_headers(client: httpx.Client, url: str) -> None:
    answer = client.get(url)
    assert (answer.status_code, answer.content) == (200, b"png bytes")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == 'inline; filename="firstlight-abc-0.png"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "private" in answer.headers["cache-control"]
    assert client.head(url).status_code == 200
    assert client.get(f"{url}&download=1").headers["content-disposition"].startswith("attachment; ")
    assert client.get(f"{url}&download=%0d%0aX:1").status_code == 422


@pytest.mark.parametrize(
    "change",
    [("signature=", "signature=0"), ("expires=", "expires=9"), ("abc/0", "abc/1"), ("?", "?x=1&signature=")],
    ids=str,
)
def test_tampered_url_is_refused(client: httpx.Client, url: str, change: tuple[str, str]) -> None:
    assert client.get(url.replace(*change)).status_code in (403, 404, 422)


def test_expired_url_is_refused(web: Web, client: httpx.Client, url: str) -> None:
    old = web.context.objects.sign(KEY, 60, time.time() - 120)
    assert client.get(old).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "/etc/passwd",
        "renders/abc/0.png%00",
        "renders/../url-secret",
        "renders/abc/%2e%2e/%2e%2e/url-secret",
        "テスト.png",
        "",
    ],
)
def test_no_name_reaches_another_file(client: httpx.Client, path: str) -> None:
    answer = client.get(f"/objects/{path}?expires=99999999999&signature=00")
    assert answer.status_code in (403, 404, 422), answer.text


def test_a_picture_without_signature_is_refused(client: httpx.Client, url: str) -> None:
    for query in ("", "?expires=9", "?signature=00", "?expires=x&signature=00", "?expires=9&signature=%00"):
        answer = client.get(f"/objects/{KEY}{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert "signed address" in answer.json()["error"]["message"]
