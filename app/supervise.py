"""Keeps a child process running: restarts it when it dies, ends it when we end."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 10.0
STEADY_S = 60.0
GRACE_S = 8.0
CANNOT_START = 2  # the exit code of a command that was refused, or lacks what it needs


def next_delay_s(delay_s: float, lasted_s: float) -> float:
    """Doubles from restart to restart, and starts over after a run of STEADY_S."""
    return FIRST_DELAY_S if lasted_s >= STEADY_S else min(2 * delay_s, LONGEST_DELAY_S)


class Supervised:
    """One child. It runs in a session of its own, so that Ctrl+C reaches it through us only.

    on_death gets the pid of a child that ended unasked, before the next one starts. hopeless is called, and no other
    starts, where the first says by its exit code that it could never have started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        on_death: Callable[[int], object] = lambda pid: None,
        hopeless: Callable[[], object] = lambda: None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self._on_death = on_death
        self._hopeless = hopeless
        self._stop_signal = stop_signal
        self._command = command
        self._env = env
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"keeps {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks nicely, then kills; returns when the child is gone."""
        with self._lock:
            self._stopping.set()
            child = self._child
        if child is None:
            return
        child.send_signal(self._stop_signal)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._thread.join()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def _run(self) -> None:
        delay_s, first = FIRST_DELAY_S / 2, True
        while (child := self._spawn()) is not None:
            started_s = time.monotonic()
            code = child.wait()
            if self._stopping.is_set():
                return
            if first and code == CANNOT_START:
                self._hopeless()
                return
            first = False
            delay_s = next_delay_s(delay_s, time.monotonic() - started_s)
            log.warning("%s ended with code %s; starting it again in %.1f s", self.name, code, delay_s)
            try:
                self._on_death(child.pid)
            except Exception:  # it must be started again, whatever that says
                log.exception("what follows the end of %s failed", self.name)
            self._stopping.wait(delay_s)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._child = subprocess.Popen(
                self._command, env=dict(self._env), stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
            )
            return self._child
