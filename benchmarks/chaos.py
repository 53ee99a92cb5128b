"""Renders while processes die, the queue restarts, a consumer group is deleted and the network is slow: what is lost?

python -m benchmarks.chaos [--renders 200] [--seed 1]

The workers are processes of one role each, as on many machines, over a Redis on TCP that keeps its append-only file.
One of the final workers sits behind a link with 200 ms. Every few seconds a worker that is ready is killed, or worse.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis

from app.context import Context, open_context
from app.serve import child_environment, self_command
from app.supervise import Supervised
from benchmarks.bundle import prompts
from benchmarks.loads import Arrival
from benchmarks.report import emit, percentile
from benchmarks.site import submit
from benchmarks.slow_link import SlowLink
from core.errors import NotFound
from core.render import TERMINAL, State
from core.settings import Settings, load_settings
from shared_cache.embedded import find_server
from shared_cache.lanes import STANDARD, lane_name
from shared_cache.renders import Record

ROLES = ("final", "final", "decode", "decode", "finish", "finish")
STEPS = 6
BUCKET = "128x128"
LINK_MS = 200
PAUSE_S = (3.0, 7.0)  # between two mishaps
END_S = 900.0
LEASE_S = 2.0


class Server:
    """A Redis on a port, that can be killed and started again over the same append-only file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [find_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends_s = time.monotonic() + 20
        while time.monotonic() < ends_s:
            with suppress(redis.RedisError), redis.Redis(port=self.port, socket_timeout=1) as client:
                if client.ping():
                    return
            time.sleep(0.05)
        raise TimeoutError("the queue did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Chaos:
    """What happens to whom; each mishap is counted."""

    def __init__(self, server: Server, workers: list[tuple[str, Supervised]], context: Context, seed: int) -> None:
        self._server = server
        self._workers = workers
        self._context = context
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._restarts = 2
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.happened: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def once_each(self) -> None:
        """Every mishap once, in order, as a short test wants it."""
        for role in ("final", "decode", "finish"):
            self._kill(role)
        self._restart()
        self._delete_group()

    def _run(self) -> None:
        mishaps: list[Callable[[], None]] = [self._kill_any] * 8 + [self._delete_group, self._restart]
        while not self._stop.wait(self._chance.uniform(*PAUSE_S)):
            self._chance.choice(mishaps)()

    def _kill_any(self) -> None:
        self._kill(self._chance.choice(sorted({role for role, _ in self._workers})))

    def _kill(self, role: str) -> None:
        """One that is ready: what is killed while it starts proves nothing."""
        with suppress(redis.RedisError, ProcessLookupError, IndexError):
            ready = {info["pid"] for info in self._context.registry.workers() if role in info["roles"]}
            pids = [worker.pid for name, worker in self._workers if name == role and worker.pid in ready]
            pid = self._chance.choice(pids)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            self.happened[f"{role} worker killed"] += 1

    def _restart(self) -> None:
        if self._restarts == 0:
            return
        self._restarts -= 1
        self._server.kill()
        self._stop.wait(1.0)
        self._server.start()
        self.happened["queue killed and started again"] += 1

    def _delete_group(self) -> None:
        stream = self._chance.choice([lane_name(STANDARD, BUCKET), "fl:stage:decode", "fl:stage:finish"])
        group = "final" if "lane" in stream else stream.rpartition(":")[2]
        with suppress(redis.RedisError):
            if self._context.redis.exists(stream):
                self._context.redis.xgroup_destroy(stream, group)
                self.happened["consumer group deleted"] += 1


@contextmanager
def cluster(
    folder: Path, roles: Sequence[str] = ROLES, link_ms: int = LINK_MS
) -> Iterator[tuple[Server, list[tuple[str, Supervised]], Context]]:
    """A queue, a worker for each of the roles (the first far away), and the door."""
    with ExitStack() as cleanup:
        server = Server(folder / "redis")
        server.start()
        cleanup.callback(server.kill)
        link = SlowLink(server.port, link_ms / 2)
        link.start()
        cleanup.callback(link.stop)
        settings = load_settings(
            data_dir=folder, redis_url=server.url, lease_s=LEASE_S, max_attempts=50, lane_capacity=100_000
        )
        workers = []
        for number, role in enumerate(roles):
            url = f"redis://127.0.0.1:{link.port}/0" if number == 0 else server.url
            worker = Supervised(f"{role} worker", self_command("worker", "--roles", role), _environment(settings, url))
            worker.start()
            cleanup.callback(worker.stop)
            workers.append((role, worker))
        context = open_context(settings)
        await_ready(context, roles)
        yield server, workers, context


def _environment(settings: Settings, url: str) -> dict[str, str]:
    changed = {"FIRSTLIGHT_LEASE_S": str(LEASE_S), "FIRSTLIGHT_MAX_ATTEMPTS": str(settings.max_attempts)}
    return {**child_environment(settings), **changed, "FIRSTLIGHT_REDIS_URL": url, "OMP_NUM_THREADS": "1"}


def await_ready(context: Context, roles: Sequence[str]) -> None:
    ends_s = time.monotonic() + 180
    while not set(roles) <= set(context.registry.ready_counts(context.profile.model)):
        if time.monotonic() > ends_s:
            raise TimeoutError("the workers were not ready in time")
        time.sleep(0.2)


def submit_all(context: Context, count: int, pause_s: float) -> list[str]:
    """Asks again while the queue is away, under the same key, as a client with an Idempotency-Key does."""
    ids = []
    for number, text in enumerate(prompts(count)):
        arrival = Arrival(number, 0.0, f"owner{number % 5}", BUCKET, STEPS, 2, None, float("inf"))
        ids.append(patiently(partial(_submitted, context, arrival, text)))
        time.sleep(pause_s)
    return ids


def _submitted(context: Context, arrival: Arrival, prompt: str) -> str:
    record = submit(context, arrival, prompt, key=f"chaos-{arrival.number}")
    assert record is not None
    return record.id


def patiently(act: Callable[[], Any], timeout_s: float = END_S) -> Any:
    ends_s = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except redis.RedisError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.2)


def await_all(context: Context, ids: list[str], timeout_s: float = END_S) -> list[Record]:
    ends_s = time.monotonic() + timeout_s
    left = list(ids)
    while left and time.monotonic() < ends_s:
        records = [patiently(partial(context.renders.get, render_id)) for render_id in left]
        left = [i for i, record in zip(left, records, strict=True) if record is None or record.state not in TERMINAL]
        time.sleep(0.5)
    return [record for i in ids if (record := context.renders.get(i)) is not None]


def account(context: Context, ids: list[str], records: list[Record]) -> dict[str, int]:
    """What the records, the events and the store say; all but done should be 0."""
    ends = {i: [e for _, e in context.events.read(i) if e["type"] == "state" and e["state"] in TERMINAL] for i in ids}
    by_id = {record.id: record for record in records}
    states = Counter(record.state for record in records)
    missing = sum(
        not stored(context, str(image["key"]))
        for record in records
        if record.state is State.DONE
        for image in record.images
    )
    return {
        "done": states[State.DONE],
        "ended otherwise": sum(count for state, count in states.items() if state in TERMINAL) - states[State.DONE],
        "lost": sum(i not in by_id or by_id[i].state not in TERMINAL for i in ids),
        "ended twice": sum(len(found) > 1 for found in ends.values()),
        "without an end event": sum(not found for found in ends.values()),
        "pictures missing": missing,
    }


def stored(context: Context, key: str) -> bool:
    try:
        return bool(context.objects.get(key))
    except NotFound:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as (server, workers, context):
        calm = await_all(context, submit_all(context, 10, 0.0))
        chaos = Chaos(server, workers, context, given.seed)
        chaos.start()
        began_s = time.monotonic()
        ids = submit_all(context, given.renders, 0.2)
        records = await_all(context, ids)
        chaos.stop()
        seconds = time.monotonic() - began_s
        outcome = account(context, ids, records)
    totals_s = [record.timings_ms["total"] / 1000 for record in records if "total" in record.timings_ms]
    attempts = Counter(record.attempt for record in records)
    figures = {
        **outcome,
        "mishaps": dict(chaos.happened),
        "attempts": {str(number): count for number, count in sorted(attempts.items())},
        "seconds": round(seconds, 1),
        "calm_p50_s": round(statistics.median(r.timings_ms["total"] / 1000 for r in calm), 2),
        "p50_s": round(percentile(totals_s, 0.5), 2),
        "p99_s": round(percentile(totals_s, 0.99), 2),
    }
    config = {"renders": given.renders, "roles": ROLES, "steps": STEPS, "link_ms": LINK_MS, "lease_s": LEASE_S}
    emit("chaos", config, figures, ["what", "count"], [[name, str(value)] for name, value in figures.items()])


if __name__ == "__main__":
    main()
