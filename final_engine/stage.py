"""A stage after denoising: a thread that takes entries from its stream, works on them and hands them on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, perf_counter

import redis

from core.errors import Unavailable
from core.metrics import Metrics
from core.render import State
from final_engine.ends import claim, fail
from shared_cache.lanes import Entry, Stream
from shared_cache.renders import Record, Renders

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.5
OUTAGE_WAIT_S = 1.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 5.0  # between tries of work that needs what is not there
Work = Callable[[Entry, Record], None]


class Stage:
    """Runs work(entry, record) for each entry whose record still wants it; a failure fails that render alone.

    A second thread renews the hold on the entry at work, however long it takes. Work that raises Unavailable is tried
    again for patience_s.
    """

    def __init__(
        self,
        *,
        name: str,
        stream: Stream,
        renders: Renders,
        expects: State,
        work: Work,
        lease_s: float,
        max_attempts: int,
        metrics: Metrics,
        patience_s: float = 0.0,
    ) -> None:
        self._name = name
        self._stream = stream
        self._renders = renders
        self._expects = expects
        self._work = work
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._metrics = metrics
        self._patience_s = patience_s
        metrics.busy(name, 0.0)  # a stage that never worked is known to be idle
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._at_work: Entry | None = None
        self._looked_s = -lease_s
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True),
            threading.Thread(target=self._beat, name=f"{name}-heartbeat", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop_taking(self) -> None:
        """The entry at work is the last one."""
        self._stop.set()

    def close(self, patience_s: float | None = None) -> None:
        """Ends when the entry at work is done; after patience_s it is left to others, and our late end is fenced."""
        self._stop.set()
        if not self._ended.wait(patience_s):
            self._release()
        self._ended.set()
        self._threads[1].join()

    def _release(self) -> None:
        entry = self._at_work
        if entry is not None:
            log.warning("stage %s leaves render %s to others, it takes too long", self._name, entry.render_id)
            with suppress(redis.RedisError):  # others take it over when our lease ends
                self._stream.release([entry])

    def _beat(self) -> None:
        while not self._ended.wait(self._lease_s / 4):
            entry = self._at_work
            if entry is not None:
                with suppress(redis.RedisError):
                    self._stream.heartbeat([entry])

    def _run(self) -> None:
        try:
            self._take_turns()
        finally:
            self._ended.set()

    def _take_turns(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except redis.RedisError:  # an outage; what was at work is taken over when it ends
                self._stop.wait(OUTAGE_WAIT_S)

    def _turn(self) -> None:
        if monotonic() - self._looked_s > self._lease_s / 2:
            self._looked_s = monotonic()
            for entry in self._stream.take_over(self._lease_s, count=1):
                found = claim(self._renders, self._metrics, entry.render_id, self._max_attempts, self._expects)
                self._handle(entry, found)
        entries = self._stream.pull(1)
        for entry in entries:
            self._handle(entry, self._renders.get(entry.render_id))
        if not entries:
            self._stream.wait(IDLE_WAIT_S)

    def _handle(self, entry: Entry, record: Record | None) -> None:
        if record is None or record.state is not self._expects:
            self._stream.ack(entry)
            return
        self._at_work = entry
        try:
            self._work_patiently(entry, record)
        except redis.RedisError:
            raise
        except Exception as error:  # this render fails, the stage goes on
            ours = None if isinstance(error, Unavailable) else error  # its sentence says all
            log.error("render %s failed in stage %s: %s", record.id, self._name, error, exc_info=ours)
            fail(self._renders, self._metrics, record, error)
            self._stream.ack(entry)
        finally:
            self._at_work = None

    def _work_patiently(self, entry: Entry, record: Record) -> None:
        """Waits out an outage of what the work needs, as long as the render is wanted and patience lasts.

        A stage that is closed meanwhile leaves the entry to whoever takes it over.
        """
        ends_s, wait_s = monotonic() + self._patience_s, FIRST_WAIT_S
        while True:
            started_s = perf_counter()
            try:
                return self._work(entry, record)
            except Unavailable as error:
                if monotonic() + wait_s > ends_s:
                    raise
                # What is away says so itself, once.
                log.debug("render %s waits in stage %s: %s", record.id, self._name, error)
            finally:
                self._metrics.busy(self._name, perf_counter() - started_s)
            if self._stop.wait(wait_s) or not self._wanted(record):
                return None
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _wanted(self, record: Record) -> bool:
        found = self._renders.get(record.id)
        return found is not None and (found.state, found.attempt) == (self._expects, record.attempt)
