"""The address under which whoever asks sees the app."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from app.proxies import public_root


@pytest.mark.parametrize(
    ("headers", "root"),
    [
        ({}, "http://inside:7860/app"),
        ({"X-Forwarded-Proto": "https"}, "https://inside:7860/app"),
        ({"X-Forwarded-Host": "a.example", "X-Forwarded-Proto": "https"}, "https://a.example/app"),
        (
            {"X-Forwarded-Host": "a.example:8443, inner", "X-Forwarded-Proto": "https, http"},
            "https://a.example:8443/app",
        ),
        ({"X-Forwarded-Host": "[::1]:8443"}, "http://[::1]:8443/app"),
        ({"X-Forwarded-Host": "a.example/../x"}, "http://inside:7860/app"),
        ({"X-Forwarded-Host": 'a"><script>', "X-Forwarded-Proto": "javascript"}, "http://inside:7860/app"),
    ],
)
def test_root_is_what_the_outermost_proxy_says(headers: dict[str, str], root: str) -> None:
    sent = {"Host": "inside:7860", **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    scope = {
        "type": "http",
        "scheme": "http",
        "path": "/app/x",
        "root_path": "/app",
        "query_string": b"",
        "headers": raw,
    }
    assert public_root(HTTPConnection(scope)) == root
