"""What a person reads when Redis cannot be used, and the wait that may not last for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis

from core.errors import StartupError
from shared_cache.connect import MAX_BLOCK_S, connect, pop_blocking, redacted, shared_clock
from shared_cache.redis_faults import explain
from tests.telling import lines


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", ""])
def test_connect_says_what_a_url_looks_like_when_it_is_none(url: str) -> None:
    with pytest.raises(StartupError, match="redis://host:port/0"):
        connect(url)


def test_connect_names_the_server_but_not_the_password_when_nobody_answers() -> None:
    with pytest.raises(StartupError, match="cannot be reached") as failure:
        connect("redis://me:hunter2@127.0.0.1:1/0")
    assert "127.0.0.1:1" in failure.value.cause
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize("name", ["REDIS_URL", "FIRSTLIGHT_REDIS_URL"])
def test_remedy_names_the_variable_that_is_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("REDIS_URL", "FIRSTLIGHT_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "redis://127.0.0.1:1/0")
    told = [explain(redis.ConnectionError("refused")).remedy, explain(redis.ReadOnlyError("no")).remedy]
    for url in ("redis://127.0.0.1:1/0", "localhost:6379"):
        with pytest.raises(StartupError) as failure:
            connect(url)
        told.append(failure.value.remedy)
    assert all(f" {name}" in remedy for remedy in told)


def test_connect_blames_the_login_when_the_password_is_wrong(redis_url: str, client: redis.Redis) -> None:
    client.config_set("requirepass", "right")
    try:
        with pytest.raises(StartupError, match="REDIS_URL"):
            connect(redis_url.replace("unix://", "unix://:wrong@"))
        with pytest.raises(StartupError, match="REDIS_URL"):
            connect(redis_url)
    finally:
        client.config_set("requirepass", "")


@pytest.fixture
def evicting(client: redis.Redis) -> Iterator[redis.Redis]:
    """A server that throws away what has a time to live when its memory is full."""
    client.config_set("maxmemory-policy", "volatile-lru")
    yield client
    client.config_set("maxmemory-policy", "noeviction")


def test_connect_refuses_a_server_that_may_throw_renders_away(redis_url: str, evicting: redis.Redis) -> None:
    with pytest.raises(StartupError, match="volatile-lru") as failure:
        connect(redis_url)
    assert "CONFIG SET maxmemory-policy noeviction" in failure.value.remedy


def test_connect_warns_where_the_policy_cannot_be_ours(
    redis_url: str, evicting: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    evicting.acl_setuser(
        "tenant", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=["-config"]
    )
    try:
        connect(redis_url.replace("unix://", "unix://tenant:pw@")).close()
    finally:
        evicting.acl_deluser("tenant")
    assert "volatile-lru" in caplog.text and "pw" not in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.OutOfMemoryError("command not allowed"), "maxmemory"),
        (redis.ReadOnlyError("You can't write"), "primary"),
        (redis.BusyLoadingError("LOADING"), "passes"),
        (redis.ConnectionError("Connection refused"), "cannot be reached (Connection refused)"),
        (redis.TimeoutError("Timeout"), "does not answer (Timeout)"),
        (redis.AuthenticationError("WRONGPASS"), "password"),
        (redis.exceptions.NoPermissionError("No permissions to access a key"), "ACL"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "free space"),
        (redis.ResponseError("ERR what"), "ERR what"),
    ],
)
def test_fault_names_cause_and_remedy(error: redis.RedisError, words: str) -> None:
    fault = explain(error)
    assert words in f"{fault.cause}; {fault.remedy}" and fault.remedy


def test_fault_knows_what_a_full_server_answers_to_scripts_too(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    try:
        for ask in (lambda: client.set("a", "b"), client.register_script("return redis.call('SET', 'a', 'b')")):
            with pytest.raises(redis.RedisError) as failure:
                ask()
            assert "maxmemory" in explain(failure.value).remedy
    finally:
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    "url", ["redis://me:hunter2@host/0", "redis://:hunter2@host/0", "unix:///s.sock?password=hunter2&db=1"]
)
def test_redacted_hides_the_password(url: str) -> None:
    assert "hunter2" not in redacted(url)


@pytest.mark.parametrize(("off_s", "words"), [(1200, "1200 s ahead of"), (-1200, "1200 s behind"), (5, "")])
def test_clock_that_is_off_is_told_and_not_followed(
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    off_s: float,
    words: str,
) -> None:
    now_s = time.time()
    monkeypatch.setattr("shared_cache.connect.time.time", lambda: now_s + off_s)
    assert abs(shared_clock(client)() - now_s) < 2
    told = lines(caplog, "shared_cache.connect")
    assert len(told) == bool(words) and words in "".join(told)


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
    assert time.monotonic() - sent_s[0] < MAX_BLOCK_S / 2
