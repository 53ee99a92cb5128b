"""The embedded queue comes back when it is killed, with what was in it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from app import embedded_queue
from app.embedded_queue import queue_of
from app.serve import child_environment
from core.settings import load_settings
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis


def server_pid(folder: Path) -> int:
    log = (folder / "redis" / "redis.log").read_text()
    return int(log.rsplit("pid=", 1)[1].split(",")[0])


def test_killed_queue_is_started_again_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_queue, "LOOK_S", 0.1)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with queue_of(load_settings(data_dir=tmp_path)) as settings:
        assert settings.redis_url is not None
        client = connect(settings.redis_url)
        client.set("kept", "yes")
        time.sleep(1.2)  # the append-only file is flushed every second
        first = server_pid(tmp_path)
        os.kill(first, signal.SIGKILL)
        assert client.get("kept") == b"yes"  # the client tries again until the server is back
        second = server_pid(tmp_path)
        assert second != first
    assert not psutil.pid_exists(second)


def test_given_queue_is_used_as_it_is(tmp_path: Path) -> None:
    with queue_of(load_settings(data_dir=tmp_path, redis_url="redis://somewhere:6379/0")) as settings:
        assert settings.redis_url == "redis://somewhere:6379/0"
    assert not (tmp_path / "redis").exists()


def test_child_is_told_of_a_queue_only_where_it_would_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRSTLIGHT_REDIS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://theirs")
    assert "FIRSTLIGHT_REDIS_URL" not in child_environment(load_settings())
    decided = child_environment(load_settings().model_copy(update={"redis_url": "unix:///ours"}))
    assert decided["FIRSTLIGHT_REDIS_URL"] == "unix:///ours"


def test_who_leaves_does_not_wait_for_a_queue_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_queue, "LOOK_S", 0.05)
    monkeypatch.setattr("shared_cache.embedded.PING_TIMEOUT_S", 0.3)
    monkeypatch.delenv("REDIS_URL", raising=False)
    owner = EmbeddedRedis(tmp_path)
    owner.start()
    assert owner.pid is not None
    try:
        with queue_of(load_settings(data_dir=tmp_path)):
            os.kill(owner.pid, signal.SIGSTOP)
            time.sleep(0.5)
            left_s = time.monotonic()
        assert time.monotonic() - left_s < 3
    finally:
        os.kill(owner.pid, signal.SIGCONT)
        owner.stop()
