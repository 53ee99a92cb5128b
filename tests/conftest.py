"""Fixtures that several rooms share: the bundled model's folder and the whole app as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from benchmarks.network import free_port
from benchmarks.s3_server import S3Server
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from benchmarks.bundle import Parts
    from sampling.safety import ImageClassifier

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "models" / "storybook" / "bundle"
READY_TIMEOUT_S = 300


class RunningApp:
    """`firstlight serve` with its own data folder, as a person runs it."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: bool = True) -> None:
        env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        env |= {"FIRSTLIGHT_PORT": str(self.port), "FIRSTLIGHT_DATA_DIR": str(self.data_dir), **self._settings}
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "app.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "serve"], cwd=ROOT, env=env, stdout=output, stderr=output
            )
        self.wait_for("/readyz" if ready else "/healthz")

    def wait_for(self, path: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            assert self._process is not None and self._process.poll() is None, self.log()
            try:
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"{path} was not 200 after {timeout_s} s\n{self.log()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(30)
        self._process = None
        return code

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self.data_dir / "app.log").read_text()[-4000:]


def worker_process(roles: str, data_dir: Path, log: Path, **settings: str) -> subprocess.Popen[bytes]:
    """`firstlight worker` as a process manager runs it; what it says goes to the end of log."""
    environment = {**os.environ, "FIRSTLIGHT_DATA_DIR": str(data_dir), **settings}
    command = [sys.executable, "-m", "app.cli", "worker", "--roles", roles]
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=output)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start the whole app come first: what is left for the end is small, and all processes end together."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(scope="session")
def bundle() -> Path:
    return BUNDLE


@pytest.fixture(scope="session")
def running_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """One app for all tests that only use it; tests that kill or restart make their own."""
    app = RunningApp(tmp_path_factory.mktemp("app"))
    app.start()
    yield app
    app.stop()


@pytest.fixture(scope="session")
def app_url(running_app: RunningApp) -> str:
    return running_app.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedRedis(tmp_path_factory.mktemp("shared"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real server with one bucket; tests keep apart by prefix."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    server.make_bucket()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """That server, and the login of one who may write in the environment."""
    for name, value in s3_server.login().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def connected(redis_url: str) -> Iterator[redis.Redis]:
    """A client of its own for each test, which knows of no other's outage, on a server that was emptied."""
    with connect(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def client(connected: redis.Redis) -> redis.Redis:
    return connected


@pytest.fixture(scope="session")
def parts() -> Parts:
    """The bundled model in this process, loaded once."""
    from benchmarks.bundle import load_parts

    return load_parts()


@pytest.fixture(scope="session")
def classifier() -> ImageClassifier:
    from sampling.safety import ImageClassifier

    return ImageClassifier(0.85)
