"""Children are restarted with back-off, stopped with us, and never outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app import supervise
from app.supervise import LONGEST_DELAY_S, Supervised, next_delay_s
from tests.conftest import ROOT

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(); time.sleep(60)"]
PARENT = """
import os, sys, time
from app.supervise import Supervised
script = "import time; from app.parents import exit_with_parent; exit_with_parent(); time.sleep(60)"
one = Supervised("child", [sys.executable, "-c", script], os.environ)
one.start()
while one.pid is None:
    time.sleep(0.01)
print(one.pid, flush=True)
time.sleep(60)
"""


def eventually(true: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        if true():
            return True
        time.sleep(0.02)
    return False


def runs(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_delays_double_up_to_a_limit_and_start_over_after_a_steady_run() -> None:
    delay_s, seen = 0.25, []
    for _ in range(8):
        delay_s = next_delay_s(delay_s, lasted_s=1)
        seen.append(delay_s)
    assert seen == [0.5, 1, 2, 4, 8, LONGEST_DELAY_S, LONGEST_DELAY_S, LONGEST_DELAY_S]
    assert next_delay_s(10, lasted_s=100) == 0.5


def test_child_that_is_killed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_DELAY_S", 0.05)
    one = Supervised("sleeper", SLEEPER, os.environ)
    one.start()
    assert eventually(lambda: runs(one.pid))
    first = one.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: one.pid != first and runs(one.pid))
    second = one.pid
    one.stop()
    assert not runs(second)


def test_stop_kills_a_child_that_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GRACE_S", 0.3)
    one = Supervised("stubborn", STUBBORN, os.environ)
    one.start()
    assert eventually(lambda: runs(one.pid))
    time.sleep(0.3)
    one.stop()
    assert not runs(one.pid)


def test_stop_during_a_delay_starts_nothing() -> None:
    ended = threading.Event()
    one = Supervised("quick", [sys.executable, "-c", ""], os.environ, on_death=lambda pid: ended.set())
    one.start()
    assert ended.wait(20)
    pid = one.pid
    one.stop()
    time.sleep(0.6)
    assert one.pid == pid


def test_first_that_could_never_start_is_not_started_again() -> None:
    told = threading.Event()
    one = Supervised("wrong", [sys.executable, "-c", "raise SystemExit(2)"], os.environ, hopeless=told.set)
    one.start()
    assert told.wait(20)
    pid = one.pid
    time.sleep(0.6)
    one.stop()
    assert one.pid == pid


def test_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert eventually(lambda: runs(child))
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not runs(child))
