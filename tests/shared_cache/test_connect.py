"""What a person reads when Redis cannot be used, and the wait that may not last for ever."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from core.errors import StartupError
from shared_cache.connect import connect, pop_blocking, redacted


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", ""])
def test_connect_says_what_a_url_looks_like_when_it_is_none(url: str) -> None:
    with pytest.raises(StartupError, match="redis://host:port/0"):
        connect(url)


def test_connect_names_the_server_but_not_the_password_when_nobody_answers() -> None:
    with pytest.raises(StartupError, match="cannot be reached") as failure:
        connect("redis://me:hunter2@127.0.0.1:1/0")
    assert "127.0.0.1:1" in failure.value.cause
    assert "hunter2" not in str(failure.value)


def test_connect_blames_the_login_when_the_password_is_wrong(redis_url: str, client: redis.Redis) -> None:
    client.config_set("requirepass", "right")
    try:
        with pytest.raises(StartupError, match="REDIS_URL"):
            connect(redis_url.replace("unix://", "unix://:wrong@"))
        with pytest.raises(StartupError, match="REDIS_URL"):
            connect(redis_url)
    finally:
        client.config_set("requirepass", "")


@pytest.mark.parametrize(
    "url", ["redis://me:hunter2@host/0", "redis://:hunter2@host/0", "unix:///s.sock?password=hunter2&db=1"]
)
def test_redacted_hides_the_password(url: str) -> None:
    assert "hunter2" not in redacted(url)


def test_pop_blocking_returns_nothing_when_its_time_is_over(client: redis.Redis) -> None:
    started_s = time.monotonic()
    assert pop_blocking(client, ["fl:none"], 0.1) is None
    assert 0.05 < time.monotonic() - started_s < 1
    assert pop_blocking(client, ["fl:none"], 0) is None


def test_pop_blocking_wakes_at_once_when_something_is_pushed(client: redis.Redis) -> None:
    sent_s: list[float] = []

    def push() -> None:
        sent_s.append(time.monotonic())
        client.lpush("fl:some", "x")

    threading.Timer(0.1, push).start()
    assert pop_blocking(client, ["fl:other", "fl:some"], 5) == b"x"
    assert time.monotonic() - sent_s[0] < 0.1
