"""The web process as a whole: page, cookie, proxies, unknown addresses."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from app.owners import COOKIE
from core.errors import StartupError
from core.settings import Settings
from tests.app.conftest import Web


def test_page_answers_and_gives_an_owner_cookie_once(client: httpx.Client) -> None:
    first = client.get("/")
    assert first.status_code == 200 and "Firstlight" in first.text
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    for part in ("HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=31536000"):
        assert part in cookie
    assert "set-cookie" not in client.get("/").headers  # it sends the cookie now


def test_cookie_makes_an_owner_of_its_own(web: Web, client: httpx.Client) -> None:
    client.get("/")
    mine = client.post("/api/v1/renders", json={"prompt": "a cat"}).json()["id"]
    with web.client() as shared, web.client() as other:
        other.get("/")
        assert shared.get(f"/api/v1/renders/{mine}").status_code == 404
        assert other.get(f"/api/v1/renders/{mine}").status_code == 404
    assert client.cookies[COOKIE] not in client.get(f"/api/v1/renders/{mine}").text


@pytest.mark.parametrize("header", ["Bearer", "bearer"])
def test_bearer_without_its_token_is_refused_not_shared(web: Web, client: httpx.Client, header: str) -> None:
    answer = client.get("/api/v1/renders", headers={"Authorization": header})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "authorization")
    with (
        connect(f"{web.url.replace('http', 'ws')}/api/v1/live", additional_headers={"Authorization": header}) as socket,
        pytest.raises(ConnectionClosed, match="Bearer wants a token"),
    ):
        socket.recv(timeout=10)


def test_login_of_a_proxy_in_front_is_not_ours_to_read(client: httpx.Client) -> None:
    assert client.get("/api/v1/renders", headers={"Authorization": "Basic YTpi"}).status_code == 200


@pytest.mark.parametrize("strips", [True, False])
def test_subpath_of_a_proxy_is_in_every_address(web: Web, client: httpx.Client, strips: bool) -> None:
    proxied = {"X-Forwarded-Prefix": "/app", "X-Forwarded-Host": "pictures.example", "X-Forwarded-Proto": "https"}
    base = "" if strips else "/app"
    page = client.get(f"{base}/", headers=proxied)
    assert page.status_code == 200 and "Path=/app" in page.headers["set-cookie"]
    assert "https://pictures.example/app" in page.text
    assert client.get(f"{base}/static/favicon.svg", headers=proxied).status_code == 200
    assert 'href="manifest.json"' in page.text and "/manifest.json" not in page.text
    icon = client.get(f"{base}/manifest.json", headers=proxied).json()["icons"][0]["src"]
    assert icon == "pwa_icon" and client.get(f"{base}/{icon}", headers=proxied).status_code == 200
    ids = [client.post(f"{base}/api/v1/renders", json={"prompt": "a"}, headers=proxied).json()["id"] for _ in "ab"]
    assert client.get(f"{base}/api/v1/renders/{ids[0]}", headers=proxied).status_code == 200
    page_of_one = client.get(f"{base}/api/v1/renders?limit=1", headers=proxied).json()
    assert page_of_one["next"].startswith("/app/api/v1/renders?")


@pytest.mark.parametrize("base", ["", "/app"])
def test_socket_works_under_a_subpath(web: Web, base: str) -> None:
    address = web.url.replace("http", "ws") + f"{base}/api/v1/live"
    with connect(address, additional_headers={"X-Forwarded-Prefix": "/app"}) as live:
        live.send("{}")
        assert "rev" in str(live.recv(5))


@pytest.mark.parametrize("prefix", ["app", "/a b", "//evil.example", '/"><script>', "/../.."])
def test_odd_prefix_is_ignored(client: httpx.Client, prefix: str) -> None:
    answer = client.get("/", headers={"X-Forwarded-Prefix": prefix})
    assert answer.status_code == 200 and prefix not in answer.headers["set-cookie"]


def test_subpath_without_slash_redirects(client: httpx.Client) -> None:
    answer = client.get("/app", headers={"X-Forwarded-Prefix": "/app"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/app/")


def test_unknown_addresses_and_methods_are_told_in_our_shape(client: httpx.Client) -> None:
    for path in ("/api/v1/nothing", "/nothing", "/file=/etc/passwd", "/assets/nothing.js", "/static/nothing.js"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    for method, path in (("PUT", "/api/v1/renders"), ("POST", "/")):
        answer = client.request(method, path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


def test_unknown_addresses_of_gradio_keep_its_own_shape(client: httpx.Client) -> None:
    for base in ("", "/app"):
        answer = client.get(f"{base}/gradio_api/nothing", headers={"X-Forwarded-Prefix": base})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_static_files_do_not_reach_outside(client: httpx.Client) -> None:
    for path in ("..%2f..%2fgateway.py", "%2e%2e/blocks.py", "nothing.js"):
        assert client.get(f"/static/{path}").status_code == 404


def test_gradio_gives_away_no_files_and_takes_none(web: Web, client: httpx.Client) -> None:
    secret = web.context.settings.data_dir / "url-secret"
    for path in (str(secret), "pyproject.toml", "app/gateway.py"):
        assert client.get(f"/gradio_api/file={path}").status_code in (403, 404)
    assert client.post("/gradio_api/upload", files={"files": b"x"}).status_code == 404


def test_broken_model_folder_is_named(web_settings: Settings, tmp_path: Path) -> None:
    from app.gateway import create_app

    with pytest.raises(StartupError, match=r"model_index\.json"):
        create_app(web_settings.model_copy(update={"model": str(tmp_path)}))


def test_queue_that_is_not_there_is_told(web_settings: Settings, tmp_path: Path) -> None:
    from app.gateway import create_app

    with pytest.raises(StartupError, match="cannot be reached"):
        create_app(web_settings.model_copy(update={"redis_url": f"unix://{tmp_path}/none.sock"}))
