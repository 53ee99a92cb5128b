"""What deploy/nginx.conf passes on, told by a server that says what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.deploy.nginx import Nginx


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        told = {"path": self.path, "port": self.server.server_port, "headers": dict(self.headers)}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests' output stays clean."""


@pytest.fixture(scope="module")
def echoes() -> Iterator[list[int]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_port for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory, echoes: list[int]) -> Iterator[Nginx]:
    nginx = Nginx(tmp_path_factory.mktemp("nginx"), {"web-1": echoes[0], "web-2": echoes[1]}, s3_port=echoes[2])
    nginx.start()
    yield nginx
    nginx.stop()


def ask(url: str, **headers: str) -> dict[str, Any]:
    answer = httpx.get(url, verify=False, headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_web_processes_take_turns_and_gradio_stays(nginx: Nginx, echoes: list[int]) -> None:
    asked = [ask(f"{nginx.url}/firstlight/api/v1/models")["port"] for _ in range(6)]
    assert set(asked) == set(echoes[:2])
    assert len({ask(f"{nginx.url}/firstlight/gradio_api/info")["port"] for _ in range(4)}) == 1


def test_what_a_visitor_claims_about_the_proxy_is_not_passed_on(nginx: Nginx) -> None:
    claims = {"X-Forwarded-Proto": "http", "X-Forwarded-Prefix": "/evil", "X-Forwarded-Host": "evil.example"}
    told = ask(f"{nginx.url}/firstlight/?a=%2F", **claims, **{"X-Forwarded-For": "1.2.3.4"})
    assert told["path"] == "/?a=%2F"
    headers = told["headers"]
    assert (headers["X-Forwarded-Proto"], headers["X-Forwarded-Prefix"]) == ("https", "/firstlight")
    assert headers["X-Forwarded-Host"] == headers["Host"] == f"localhost:{nginx.port}"
    assert headers["X-Forwarded-For"] == "127.0.0.1"


def test_socket_is_upgraded_and_other_connections_are_kept(nginx: Nginx) -> None:
    socket = ask(f"{nginx.url}/firstlight/api/v1/live", Upgrade="websocket", Connection="Upgrade")["headers"]
    assert (socket["Upgrade"], socket["Connection"]) == ("websocket", "upgrade")
    assert "Connection" not in ask(f"{nginx.url}/firstlight/")["headers"]


def test_signed_picture_reaches_s3_as_it_was_signed(nginx: Nginx, echoes: list[int]) -> None:
    signed = "/firstlight/renders/a/0.png?X-Amz-Signature=ab%2Fc"
    told = ask(f"https://localhost:{nginx.pictures_port}{signed}")
    assert (told["path"], told["port"]) == (signed, echoes[2])
    assert told["headers"]["Host"] == f"localhost:{nginx.pictures_port}"
    refused = httpx.put(f"https://localhost:{nginx.pictures_port}{signed}", content=b"x", verify=False)
    assert refused.status_code == 403
