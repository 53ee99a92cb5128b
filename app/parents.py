"""Children that end with their parent, also when the parent is killed -9: the kernel closes the pipe they read."""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_S = 8.0


def exit_with_parent() -> None:
    """Watches standard input, which the parent holds open and never writes to."""
    threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would abort an interpreter that ends while we wait here
        pass
    os.kill(os.getpid(), signal.SIGINT)  # which ends a worker sooner than SIGTERM
    time.sleep(GRACE_S)
    os._exit(1)
