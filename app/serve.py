"""`firstlight serve`: queue, worker and web process together, in the foreground, ending together."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from app.address import announced, announced_url
from app.embedded_queue import queue_of
from app.roles import roles_of
from app.supervise import Supervised
from core.errors import StartupError
from core.settings import Settings, load_settings
from final_engine.routes import fused_of
from sampling.memory import check_fits
from shared_cache.connect import connect
from shared_cache.registry import Registry

if TYPE_CHECKING:
    from app.context import Context

log = logging.getLogger(__name__)

GRACEFUL_S = 3
Say = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens."""

    listener: socket.socket
    url: str  # as seen from this machine


def serve(settings: Settings, say: Say, announce: bool = True) -> None:
    """Runs until SIGINT or SIGTERM. say gets ("open" | "ready" | "stopped", facts).

    Raises: StartupError for a broken model folder, a taken port or data folder, a queue that cannot be reached, and for
    whatever its worker could never start with.
    """
    started_s = time.monotonic()
    roles = roles_of(settings.roles)
    check_fits(settings.model, roles, settings.device)
    if roles:
        fused_of(settings)
    cannot = threading.Event()

    def hopeless() -> None:
        cannot.set()
        os.kill(os.getpid(), signal.SIGTERM)

    with _stopped_by_signals(), ExitStack() as cleanup:
        place = open_place(settings)
        cleanup.callback(place.listener.close)
        if announce:  # first: a second server of an embedded queue must not touch it
            alone = settings.redis_url is None
            cleanup.enter_context(announced(settings.data_dir, place.url, alone))
        settings = cleanup.enter_context(queue_of(settings))
        for worker in _workers(settings, hopeless):
            worker.start()
            cleanup.callback(worker.stop)
        _run_web(settings, place, say, started_s)
    if cannot.is_set():
        raise StartupError("the worker cannot start, for the reason above", "correct that, then start again")
    say("stopped", {})
    gc.freeze()  # else the interpreter looks through everything once more before it ends, for a second or more


def open_place(settings: Settings) -> Place:
    """Raises: StartupError when the port or the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1)  # a second server must fail here, not later
    except OSError as error:
        listener.close()
        cause = f"port {settings.port} on {settings.host} cannot be used: {error.strerror}"
        if (other := announced_url(settings.data_dir)) is not None:
            cause += f"; a server of the data folder {settings.data_dir} is at {other}"
        remedy = "stop what uses it, or choose another with FIRSTLIGHT_PORT (0 takes a free one)"
        raise StartupError(cause, remedy) from None
    port = listener.getsockname()[1]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    return Place(listener, f"http://{host}:{port}{settings.root_path}")


def _workers(settings: Settings, hopeless: Callable[[], object]) -> Iterator[Supervised]:
    if roles_of(settings.roles):
        assert settings.redis_url is not None
        registry = Registry(connect(settings.redis_url))

        def forget(pid: int) -> None:
            with suppress(RedisError):  # an outage; it is forgotten in a few seconds all the same
                registry.withdraw_process(pid)

        yield Supervised(
            "worker",
            self_command("worker", "--roles", settings.roles, "--exit-with-parent"),
            child_environment(settings),
            on_death=forget,
            hopeless=hopeless,
            stop_signal=signal.SIGINT,  # hands back at once what is not done: here somebody waits for the end
        )


def self_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", *arguments]


def child_environment(settings: Settings) -> Mapping[str, str]:
    """Our environment with the settings that were decided here."""
    decided = {
        "FIRSTLIGHT_DATA_DIR": str(settings.data_dir.resolve()),
        "FIRSTLIGHT_MODEL": settings.model,
        "FIRSTLIGHT_ROLES": settings.roles,
    }
    if settings.redis_url not in (None, load_settings().redis_url):  # else it finds it where we did, and can say where
        decided["FIRSTLIGHT_REDIS_URL"] = settings.redis_url
    root = str(Path(__file__).resolve().parent.parent)
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **decided, "PYTHONPATH": search}


def _run_web(settings: Settings, place: Place, say: Say, started_s: float) -> None:
    import uvicorn

    from app.gateway import create_app  # after the worker has started: Gradio takes seconds to import

    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws_max_size=2**17,
        timeout_graceful_shutdown=GRACEFUL_S,
        server_header=False,
        ws_per_message_deflate=False,
    )
    server = uvicorn.Server(config)
    # Event streams are cut when the server ends, which is no error of theirs.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing" not in record.getMessage())
    url, context = settings.public_url or place.url, app.state.context
    watcher = threading.Thread(target=_watch, args=(url, context, server, say, started_s), daemon=True)
    watcher.start()
    server.run(sockets=[place.listener])


def _watch(url: str, context: Context, server: Any, say: Say, started_s: float) -> None:
    """Says when the page answers, and when the pools are warm."""
    from app.standing import Stand, standing

    while not server.started:
        time.sleep(0.02)
    roles = context.settings.roles.strip()
    say("open", {"url": url, "pid": os.getpid(), "roles": roles})
    while not server.should_exit:
        if standing(context.registry, context.profile.model).stand is Stand.READY:
            say("ready", {"seconds": round(time.monotonic() - started_s, 1)})
            return
        time.sleep(0.1)


class Stop(BaseException):
    """A signal asked us to end."""


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the block, and the clean-up inside it is not cut short by a second one."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stop

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stop:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
