"""The queue of a process group: REDIS_URL's, or the embedded one, which is started again when it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import StartupError
from core.settings import Settings
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis
from shared_cache.registry import Registry

log = logging.getLogger(__name__)

LOOK_S = 1.0


@contextmanager
def queue_of(settings: Settings) -> Iterator[Settings]:
    """The settings with a queue that runs and is kept running.

    Raises: StartupError when the embedded one cannot be started.
    """
    if settings.redis_url is not None:
        yield settings
        return
    embedded = EmbeddedRedis(settings.data_dir)
    url = embedded.start()
    with connect(url) as client:
        Registry(client).clear()  # what a killed app left behind is not ready
    stopping = threading.Event()
    keeper = threading.Thread(target=_keep, args=(embedded, stopping), name="keeps the queue", daemon=True)
    keeper.start()
    try:
        yield settings.model_copy(update={"redis_url": url})
    finally:
        stopping.set()
        keeper.join(15.0)
        embedded.stop()


def _keep(embedded: EmbeddedRedis, stopping: threading.Event) -> None:
    """start() is safe beside a server that lives: it waits for one that is only slow, and never starts a second."""
    told = False
    while not stopping.wait(LOOK_S):
        if embedded.alive():
            told = False
            continue
        if embedded.ended and not told:
            log.warning("the queue ended; starting it again")
        try:
            embedded.start(stopping.is_set)
        except StartupError as error:
            if not told and not stopping.is_set():
                log.error("the queue could not be started again: %s", error)
            told = True
