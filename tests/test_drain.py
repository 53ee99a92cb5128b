"""Workers that are told to end with work at hand."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from shared_cache import keys
from shared_cache.connect import connect
from shared_cache.registry import Registry
from shared_cache.renders import Record, Renders
from tests.asking import a_render, ended
from tests.conftest import RunningApp, worker_process

ROLES = "final,decode,finish"
STEPS = 40
TIMEOUT_S = 300


class Fleet:
    """A web process and two workers, of which one has no time to end in; a render has one attempt."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        settings = {"REDIS_URL": redis_url, "FIRSTLIGHT_MAX_ATTEMPTS": "1"}
        self._log = folder / "workers.log"
        self._redis = connect(redis_url)
        self._registry, self._renders = Registry(self._redis), Renders(self._redis)
        self.app = RunningApp(folder, FIRSTLIGHT_ROLES="", **settings)
        self.patient = worker_process(ROLES, folder, self._log, FIRSTLIGHT_DRAIN_S="90", **settings)
        self.hasty = worker_process(ROLES, folder, self._log, FIRSTLIGHT_DRAIN_S="0", **settings)

    def start(self) -> None:
        self.app.start(ready=False)
        self.until(lambda: self.ready() == 2)

    def ready(self) -> int:
        return sum("final" in worker["ready"] for worker in self._registry.workers())

    def look(self, render_id: str) -> Record:
        found = self._renders.get(render_id)
        assert found is not None
        return found

    def running(self, http: httpx.Client) -> str:
        """A render that is under way."""
        render_id = a_render(http, prompt="a cat on the beach", steps=STEPS)
        self.until(lambda: self.look(render_id).step >= 3)
        return render_id

    def spent(self, render_id: str) -> int:
        """The attempts that count."""
        numbers = self._redis.hmget(keys.render(render_id), "attempt", "unspent")
        attempt, unspent = (int(number or 0) for number in numbers)
        return attempt - unspent

    def until(self, condition: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < ends_s, self._log.read_text()[-4000:]
            time.sleep(0.05)

    def close(self) -> None:
        for child in (self.patient, self.hasty):
            child.kill()
            child.wait()
        if self.app.runs:
            self.app.stop()


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, redis_url)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()


def test_leaving_workers_finish_or_hand_back_what_they_have(fleet: Fleet) -> None:
    with httpx.Client(base_url=fleet.app.url, timeout=TIMEOUT_S) as http:
        fleet.patient.send_signal(signal.SIGSTOP)  # so that the other one takes it
        render_id = fleet.running(http)
        fleet.patient.send_signal(signal.SIGCONT)
        fleet.hasty.send_signal(signal.SIGTERM)
        assert fleet.hasty.wait(TIMEOUT_S) == 0
        done = ended(http, render_id)
        assert done["state"] == "done" and len(done["images"]) == 1, done
        assert done["progress"]["step"] == len(done["batch_sizes"]) == STEPS
        assert fleet.spent(render_id) == 1 and fleet.look(render_id).attempt == 3

        under_way = fleet.running(http)
        fleet.patient.send_signal(signal.SIGTERM)
        fleet.until(lambda: fleet.ready() == 0)
        told = http.get("/readyz").json()
        assert fleet.patient.poll() is None and told["workers"]["final"] == 0 and "final" in told["reason"]
        late = a_render(http, prompt="a castle in the snow", steps=4)
        assert fleet.patient.wait(TIMEOUT_S) == 0
        assert fleet.look(under_way).step == STEPS and fleet.spent(under_way) == 1
        assert http.get(f"/api/v1/renders/{late}").json()["state"] == "queued"
        assert fleet.spent(late) == 0
