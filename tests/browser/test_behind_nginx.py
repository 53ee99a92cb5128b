"""The main job through nginx with deploy/nginx.conf: TLS, a sub-path, two web processes that come and go."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client

from shared_cache.embedded import EmbeddedRedis
from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.browser.conftest import Desk
from tests.browser.test_accepting import fewer_steps
from tests.conftest import RunningApp
from tests.deploy.nginx import Nginx

SUB_PATH = "/firstlight"


@dataclass(frozen=True, slots=True)
class Site:
    """Two web processes of their own beside the shared app, whose queue, workers and pictures they use."""

    nginx: Nginx
    webs: list[RunningApp]

    @property
    def url(self) -> str:
        return self.nginx.url + SUB_PATH

    def client(self, cookies: Mapping[str, str] | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=False, timeout=TIMEOUT_S, cookies=cookies)


def another_web(running_app: RunningApp, folder: Path) -> RunningApp:
    """As on another machine with the pictures' folder mounted."""
    (folder / "objects").symlink_to(running_app.data_dir / "objects")
    (folder / "url-secret").symlink_to(running_app.data_dir / "url-secret")
    return RunningApp(folder, FIRSTLIGHT_ROLES="", REDIS_URL=EmbeddedRedis(running_app.data_dir).url)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, running_app: RunningApp) -> Iterator[Site]:
    webs = [another_web(running_app, tmp_path_factory.mktemp("web")) for _ in range(2)]
    nginx = Nginx(tmp_path_factory.mktemp("nginx"), {f"web-{n}": web.port for n, web in enumerate(webs, 1)})
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda web: web.start(ready=False), webs))
    nginx.start()
    yield Site(nginx, webs)
    nginx.stop()
    for web in webs:
        web.stop()


@pytest.fixture(scope="module")
def app_url(site: Site) -> str:
    """Where the person at the desk goes, in place of the app itself."""
    return f"{site.url}/"


@pytest.fixture(scope="module")
def visitor(new_desk: Callable[..., Desk]) -> Desk:
    return new_desk(ignore_https_errors=True)


def test_page_socket_events_and_download_work_under_the_subpath(site: Site, visitor: Desk, tmp_path: Path) -> None:
    answers: list[tuple[int, str]] = []
    sockets: list[str] = []
    visitor.page.on("response", lambda answer: answers.append((answer.status, answer.url)))
    visitor.page.on("websocket", lambda socket: sockets.append(socket.url))
    visitor.open()
    fewer_steps(visitor, 4)
    visitor.write("a cat on the beach")
    card = visitor.done(visitor.accept())
    (cookie,) = visitor.context.cookies()
    assert (cookie["path"], cookie["secure"], cookie["httpOnly"]) == (SUB_PATH, True, True)

    card.get_by_role("button").first.click()
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("dialog").get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "picture.png")
    picture = hashlib.sha256((tmp_path / "picture.png").read_bytes()).hexdigest()
    found = visitor.context.request.get(f"{site.url}/api/v1/renders/{card.get_attribute('data-id')}").json()
    assert picture == found["images"][0]["sha256"]
    visitor.page.keyboard.press("Escape")

    assert [answer for answer in answers if answer[0] >= 400] == []
    outside = [url for _, url in answers if not url.startswith((f"{site.url}/", "blob:", "data:"))]
    assert outside == [] and visitor.errors == []
    assert [url.replace("wss:", "https:") for url in sockets] == [f"{site.url}/api/v1/live"]


def test_two_web_processes_serve_one_session(site: Site) -> None:
    with site.client() as http:
        assert "Secure" in http.get("/").headers["set-cookie"]
        preview = a_preview(http, seed=7)
        render_id = a_render(http, preview_id=preview["preview_id"], steps=2)
        image = ended(http, render_id)["images"][0]
        assert image["url"].startswith(f"{SUB_PATH}/objects/") or image["url"].startswith(f"{site.url}/objects/")
        for _ in site.webs:
            bytes_ = httpx.get(httpx.URL(site.url).join(image["url"]), verify=False).content
            assert hashlib.sha256(bytes_).hexdigest() == image["sha256"]
    expected = {f"127.0.0.1:{web.port}" for web in site.webs}
    assert site.nginx.served_by(f"/api/v1/renders/{render_id}") == expected


def test_gradio_client_is_answered_by_the_process_that_it_asked(site: Site) -> None:
    client = Client(f"{site.url}/", ssl_verify=False, verbose=False)
    for seed in (7, 8):
        made = client.predict("a cat on the beach", seed=seed, api_name="/preview")
        assert made["seed"] == seed and made["image_b64"]
    client.close()


def test_doors_that_are_not_for_everybody_are_closed(site: Site) -> None:
    with site.client() as http:
        assert http.get("/metrics").status_code == 404
        assert http.get(site.nginx.url).status_code == 404
    plain = httpx.get(f"http://localhost:{site.nginx.plain_port}{SUB_PATH}/")
    assert (plain.status_code, plain.headers["location"]) == (301, f"https://localhost{SUB_PATH}/")


class Following:
    """The owner's events as EventSource asks for them: when the stream breaks, again from the last id."""

    def __init__(self, http: httpx.Client) -> None:
        self.events: list[dict[str, Any]] = []
        self.resumed_from: list[str] = []
        self.open = threading.Event()
        self.stopped = False
        self._http = http
        self._last_id = ""

    def run(self) -> None:
        while not self.stopped:
            try:
                self._follow()
            except httpx.TransportError:
                time.sleep(0.1)

    def _follow(self) -> None:
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        with self._http.stream("GET", "/api/v1/events", headers=headers) as answer:
            if answer.status_code != 200:
                raise httpx.RemoteProtocolError(str(answer.status_code))
            self.resumed_from += headers.values()
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    self._last_id = line[4:]
                    self.open.set()
                elif line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                if self.stopped:
                    return


def a_sure_render(http: httpx.Client, **fields: Any) -> str:
    """Asked for again under the same key while the proxy finds only the process that is gone, as docs/api.md has it."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    for _ in range(10):
        answer = http.post("/api/v1/renders", json=fields, headers=headers)
        if answer.status_code != 502:
            break
        time.sleep(0.5)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def all_events(http: httpx.Client, render_id: str) -> list[dict[str, Any]]:
    lines = http.get(f"/api/v1/renders/{render_id}/events").text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_events_go_on_by_id_while_web_processes_are_killed_and_restarted(site: Site, visitor: Desk) -> None:
    cookies = {str(cookie["name"]): str(cookie["value"]) for cookie in visitor.context.cookies()}
    asked = {"prompt": "a boat at night", "steps": 2}
    with ThreadPoolExecutor() as pool, site.client(cookies) as http, site.client(cookies) as listening:
        following = Following(listening)
        running = pool.submit(following.run)
        assert following.open.wait(TIMEOUT_S)
        restarted, gone = site.webs
        ids = [a_sure_render(http, **asked)]
        restarted.stop(signal.SIGKILL)
        ids.append(a_sure_render(http, **asked))
        restarted.start(ready=False)
        gone.stop(signal.SIGKILL)
        site.webs.remove(gone)
        ids.append(a_sure_render(http, **asked))
        for render_id in ids:
            visitor.done(render_id)  # on the same page, which was not loaded anew
        following.stopped = True
        ids.append(a_sure_render(http, **asked))  # the event that ends the following
        running.result(TIMEOUT_S)
        assert following.resumed_from, "one of the two had carried the stream"
        for render_id in ids[:-1]:
            heard = [event for event in following.events if event["id"] == render_id]
            assert heard == all_events(http, render_id), "each event once and in order"
    visitor.write("a lighthouse")
