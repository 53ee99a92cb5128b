"""Who asks a worker to end decides how long it may take."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from app.stopping import Stopping


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_waited_for_while_the_model_loads() -> None:
    stopping = Stopping(20.0, loading=True)
    stopping.listen()
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 0 and stopping.asked.is_set()


def told(*numbers: int) -> Stopping:
    stopping = Stopping(20.0)
    stopping.listen()
    for number in numbers:
        os.kill(os.getpid(), number)
    return stopping


def test_nobody_asked() -> None:
    stopping = told()
    assert not stopping.asked.is_set() and not stopping.over()


def test_sigterm_leaves_time() -> None:
    stopping = told(signal.SIGTERM)
    assert stopping.asked.is_set() and 19 < stopping.left_s <= 20


TWICE = [signal.SIGTERM, signal.SIGTERM]


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT], TWICE])
def test_sigint_and_a_second_signal_leave_none(numbers: list[int]) -> None:
    stopping = told(*numbers)
    assert stopping.asked.is_set() and stopping.over()
