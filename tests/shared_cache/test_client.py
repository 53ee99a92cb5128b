"""What a call may take when Redis hangs, is restarted or refuses, and who hears of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from shared_cache import connect as connect_module
from shared_cache.client import PATIENCE_S, QUIET_S, REST_S, Line
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis
from tests.sampling.conftest import Clock
from tests.telling import lines


class Server:
    """Answers, or does what a test has it do."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked, self.hung_up = clock, 0, 0
        self.error: Exception | None = None
        self.takes_s = 0.0

    def ask(self) -> str:
        self.asked += 1
        self.clock.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return "answer"

    def hang_up(self) -> None:
        self.hung_up += 1


@pytest.fixture
def server() -> Server:
    return Server(Clock())


@pytest.fixture
def line(server: Server) -> Line:
    def sleep(seconds: float) -> None:
        server.clock.now_s += seconds

    return Line(server.hang_up, server.clock, sleep)


def test_call_rides_out_a_restart_and_nobody_is_told(
    line: Line, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.error = redis.ConnectionError("refused")

    def ask() -> str:
        if server.asked == 4:
            server.error = None
        return server.ask()

    assert line.call(ask) == "answer" and server.asked == 5
    assert server.clock.now_s < PATIENCE_S and not lines(caplog, "shared_cache.outage")


def test_server_that_stays_away_costs_one_wait_and_one_line(
    line: Line, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    began_s, server.error = server.clock.now_s, redis.ConnectionError("refused")
    with pytest.raises(redis.ConnectionError):
        line.call(server.ask)
    assert server.clock.now_s - began_s <= PATIENCE_S and server.asked > 5
    asked, waited_s = server.asked, server.clock.now_s
    for _ in range(50):
        with pytest.raises(redis.ConnectionError, match="refused"):
            line.call(server.ask)
    assert (server.asked, server.clock.now_s) == (asked, waited_s)
    server.clock.now_s += REST_S
    with pytest.raises(redis.ConnectionError):
        line.call(server.ask)
    assert server.asked == asked + 1
    server.error = None
    server.clock.now_s += REST_S
    for _ in range(3):
        assert line.call(server.ask) == "answer"
        server.clock.now_s += QUIET_S
    assert len(lines(caplog, "shared_cache.outage")) == 2
    assert "cannot be reached (refused); what to do: start it" in caplog.text and "again after" in caplog.text


def test_what_may_have_been_heard_is_not_said_twice(line: Line, server: Server) -> None:
    server.error = redis.TimeoutError("no answer")
    with pytest.raises(redis.TimeoutError):
        line.call(server.ask)
    assert (server.asked, server.hung_up) == (1, 1)


def test_refusal_stops_no_other_call_and_is_told_once(
    line: Line, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        server.error = redis.OutOfMemoryError("command not allowed")
        with pytest.raises(redis.OutOfMemoryError):
            line.call(server.ask)
        server.error = None
        assert line.call(server.ask) == "answer"
        server.clock.now_s += 3
    assert len(lines(caplog, "shared_cache.outage")) == 1 and "raise its maxmemory" in caplog.text


def test_answer_that_callers_expect_is_no_outage(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    client.script_flush()
    assert client.register_script("return 1")() == 1
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        client.xpending("nothing", "nobody")
    assert not lines(caplog, "shared_cache.outage")


def test_late_failure_does_not_take_the_server_away_again(
    line: Line, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def overtaken() -> str:
        server.clock.now_s += 1
        assert line.call(server.ask) == "answer"
        raise redis.TimeoutError("no answer")

    with pytest.raises(redis.TimeoutError):
        line.call(overtaken)
    assert line.call(server.ask) == "answer" and not lines(caplog, "shared_cache.outage")


def test_one_who_was_interrupted_while_looking_leaves_the_look_to_others(line: Line, server: Server) -> None:
    server.error = redis.TimeoutError("no answer")
    with pytest.raises(redis.TimeoutError):
        line.call(server.ask)
    server.clock.now_s += REST_S
    server.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        line.call(server.ask)
    server.error = None
    assert line.call(server.ask) == "answer"


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[redis.Redis, Callable[[int], None]]]:
    """A client of a real server, and what stops that and lets it go on."""
    monkeypatch.setattr(connect_module, "ANSWER_TIMEOUT_S", 0.4)
    embedded = EmbeddedRedis(tmp_path)
    client = connect(embedded.start())
    pid = embedded.pid
    assert pid is not None
    yield client, lambda number: os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    client.close()
    embedded.stop()


def test_server_that_hangs_keeps_nobody_and_loses_nothing(
    hung: tuple[redis.Redis, Callable[[int], None]], caplog: pytest.LogCaptureFixture
) -> None:
    client, send = hung
    client.rpush("kept", "before")
    send(signal.SIGSTOP)
    began_s = time.monotonic()

    def fails(index: int) -> bool:
        with pytest.raises(redis.TimeoutError), client.pipeline() as pipe:
            pipe.rpush("kept", str(index))
            pipe.execute()
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fails, range(40)))
    assert time.monotonic() - began_s < 4
    threading.Timer(0.3, send, [signal.SIGCONT]).start()
    time.sleep(0.5 + REST_S)
    assert client.lindex("kept", 0) == b"before"
    with client.pipeline() as pipe:
        pipe.rpush("kept", "after")
        assert pipe.execute() and client.lindex("kept", -1) == b"after"
    assert len(lines(caplog, "shared_cache.outage")) == 1
    assert "does not answer" in caplog.text and "see whether its process hangs" in caplog.text


def test_quiet_wait_is_not_taken_for_a_server_that_hangs(client: redis.Redis) -> None:
    assert connect_module.MAX_BLOCK_S < connect_module.ANSWER_TIMEOUT_S
    assert connect_module.pop_blocking(client, ["fl:none"], connect_module.MAX_BLOCK_S + 0.2) is None


def test_batch_is_sent_again_whole_when_the_connection_broke(client: redis.Redis) -> None:
    script = client.register_script("return redis.call('INCR', KEYS[1])")
    client.script_flush()
    with client.pipeline() as pipe:
        pipe.set("a", "1")
        script(keys=["b"], client=pipe)
        client.client_kill_filter(_type="normal", skipme=False)
        assert pipe.execute() == [True, 1]
