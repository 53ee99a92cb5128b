"""Renders while processes die, queue and store go away, groups are deleted and the network is slow: what is lost?

python -m benchmarks.chaos [--renders 300] [--pause-s 1] [--seed 1]

The workers are processes of one role each, as on many machines, over a Redis on TCP that keeps its append-only file,
and an S3 server. One of the final workers sits behind a link with 200 ms. Every few seconds a worker that is ready is
killed, or worse: the queue is killed twice, and the store is away once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import redis

from app.context import Context, open_context
from app.serve import child_environment, self_command
from app.supervise import Supervised
from benchmarks.bundle import prompts
from benchmarks.loads import Arrival
from benchmarks.network import Link, free_port
from benchmarks.report import emit, percentile
from benchmarks.s3_server import BUCKET, S3Server
from benchmarks.site import submit
from core.errors import NotFound
from core.render import TERMINAL, State
from core.settings import Settings, load_settings
from shared_cache import keys
from shared_cache.embedded import find_server
from shared_cache.lanes import FINAL_GROUP, STANDARD, decode_stage, lane_name
from shared_cache.renders import Record

ROLES = ("final", "final", "decode", "decode", "finish", "finish")
STEPS = 6
SIZE = "128x128"
LINK_MS = 200
PAUSE_S = (5.0, 11.0)  # between two mishaps
AWAY_S = 20.0  # the store
HANG_S = 5.0  # the queue; longer than an answer of it is waited for
CALM = 30  # renders before the first mishap, to compare with
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

    def hang(self, seconds: float) -> None:
        """Neither answers nor refuses for so long."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is to disturb, and the door. store: the way to it. workers: role and process of each."""

    queue: Server
    store: Link
    workers: list[tuple[str, Supervised]]
    context: Context


class Chaos:
    """What happens to whom; each mishap is counted."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.happened: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def once_each(self, away_s: float) -> None:
        """Every mishap once, in order, as a short test wants it."""
        for role in ("final", "decode", "finish"):
            self._kill(role)
        self._restart()
        self._hang()
        self._delete_group()
        self._store_away(away_s)

    def _run(self) -> None:
        """The rare ones come in the first minutes, among the others; then the others alone."""
        common: list[Callable[[], None]] = [self._kill_any] * 6 + [self._delete_group] * 2
        rare: list[list[Callable[[], None]]] = [
            [self._restart, self._store_away_meanwhile],
            [self._restart, self._hang],
        ]
        with ExitStack() as ends:
            self._ends = ends
            while not self._stop.is_set():
                mishaps = common + (rare.pop(0) if rare else [])
                self._chance.shuffle(mishaps)
                for mishap in mishaps:
                    if self._stop.wait(self._chance.uniform(*PAUSE_S)):
                        return
                    mishap()

    def _kill_any(self) -> None:
        self._kill(self._chance.choice(sorted({role for role, _ in self._cluster.workers})))

    def _kill(self, role: str) -> None:
        """One that is ready: what is killed while it starts proves nothing."""
        with suppress(redis.RedisError, ProcessLookupError, IndexError):
            ready = {info["pid"] for info in self._cluster.context.registry.workers() if role in info["ready"]}
            pids = [worker.pid for name, worker in self._cluster.workers if name == role and worker.pid in ready]
            pid = self._chance.choice(pids)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            self.happened[f"{role} worker killed"] += 1

    def _restart(self) -> None:
        self._cluster.queue.kill()
        self._stop.wait(1.0)
        self._cluster.queue.start()
        self.happened["queue killed and started again"] += 1

    def _hang(self) -> None:
        self._cluster.queue.hang(HANG_S)
        self.happened["queue hung"] += 1

    def _store_away_meanwhile(self) -> None:
        """Other mishaps go on."""
        away = threading.Thread(target=self._store_away, args=(AWAY_S,))
        away.start()
        self._ends.callback(away.join)

    def _store_away(self, away_s: float) -> None:
        self._cluster.store.cut()
        time.sleep(away_s)
        self._cluster.store.mend()
        self.happened["store away"] += 1

    def _delete_group(self) -> None:
        stages = [decode_stage(self._cluster.context.profile.model), "finish"]
        groups = {lane_name(STANDARD, SIZE): FINAL_GROUP, **{keys.stream(stage): stage for stage in stages}}
        stream = self._chance.choice(list(groups))
        with suppress(redis.ResponseError):  # a stream that nobody wrote to, or a group that is deleted already
            if self._cluster.context.redis.xgroup_destroy(stream, groups[stream]):
                self.happened["consumer group deleted"] += 1


@contextmanager
def cluster(folder: Path, roles: Sequence[str] = ROLES, link_ms: int = LINK_MS) -> Iterator[Cluster]:
    """A queue, a store, a worker for each of the roles (the first far away from the queue), and the door."""
    with ExitStack() as cleanup:
        queue, server = Server(folder / "redis"), S3Server(folder / "s3")
        queue.start()
        cleanup.callback(queue.kill)
        server.start()
        cleanup.callback(server.stop)
        server.make_bucket()
        cleanup.enter_context(mock.patch.dict(os.environ, server.login()))
        far, store = Link(queue.port, link_ms / 2000), Link(server.port)
        cleanup.callback(far.close)
        cleanup.callback(store.close)
        settings = load_settings(
            data_dir=folder,
            redis_url=queue.url,
            lease_s=LEASE_S,
            max_attempts=50,
            lane_capacity=100_000,
            s3_bucket=BUCKET,
            s3_endpoint=store.endpoint,
        )
        workers = []
        for number, role in enumerate(roles):
            url = f"redis://127.0.0.1:{far.port}/0" if number == 0 else queue.url
            worker = Supervised(f"{role} worker", self_command("worker", "--roles", role), _environment(settings, url))
            worker.start()
            cleanup.callback(worker.stop)
            workers.append((role, worker))
        context = open_context(settings)
        await_ready(context, roles)
        yield Cluster(queue, store, workers, context)


def _environment(settings: Settings, redis_url: str) -> dict[str, str]:
    names = ("lease_s", "max_attempts", "s3_bucket", "s3_endpoint")
    changed = {f"FIRSTLIGHT_{name.upper()}": str(getattr(settings, name)) for name in names}
    return {**child_environment(settings), **changed, "FIRSTLIGHT_REDIS_URL": redis_url, "OMP_NUM_THREADS": "1"}


def await_ready(context: Context, roles: Sequence[str]) -> None:
    ends_s = time.monotonic() + 180
    while not set(roles) <= set(context.registry.ready_counts(context.profile.model)):
        if time.monotonic() > ends_s:
            raise TimeoutError("the workers were not ready in time")
        time.sleep(0.2)


def submit_all(context: Context, count: int, pause_s: float, name: str = "chaos") -> list[str]:
    """Asks again while the queue is away, under the same key, as a client with an Idempotency-Key does."""
    ids = []
    for number, text in enumerate(prompts(count)):
        arrival = Arrival(number, 0.0, f"owner{number % 5}", SIZE, STEPS, 2, None, float("inf"))
        ids.append(patiently(partial(_submitted, context, arrival, text, f"{name}-{number}")))
        time.sleep(pause_s)
    return ids


def _submitted(context: Context, arrival: Arrival, prompt: str, key: str) -> str:
    record = submit(context, arrival, prompt, key)
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
    parser.add_argument("--renders", type=int, default=300)
    parser.add_argument("--pause-s", type=float, default=1.0, help="between two renders that are asked for")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as there:
        calm = await_all(there.context, submit_all(there.context, CALM, given.pause_s, "calm"))
        chaos = Chaos(there, given.seed)
        chaos.start()
        began_s = time.monotonic()
        ids = submit_all(there.context, given.renders, given.pause_s, "chaos")
        records = await_all(there.context, ids)
        seconds = time.monotonic() - began_s
        chaos.stop()
        outcome = account(there.context, ids, records)
    attempts = Counter(record.attempt for record in records)
    figures = {
        **outcome,
        "mishaps": dict(sorted(chaos.happened.items())),
        "attempts": {str(number): count for number, count in sorted(attempts.items())},
        "seconds": round(seconds, 1),
        "calm_s": _spread(calm),
        "chaos_s": _spread(records),
    }
    config = {
        "renders": given.renders,
        "pause_s": given.pause_s,
        "roles": ROLES,
        "steps": STEPS,
        "link_ms": LINK_MS,
        "lease_s": LEASE_S,
        "store_away_s": AWAY_S,
    }
    emit("chaos", config, figures, ["what", "count"], [[name, str(value)] for name, value in figures.items()])


def _spread(records: list[Record]) -> dict[str, float]:
    """Seconds from asking to the picture."""
    totals_s = [record.timings_ms["total"] / 1000 for record in records if "total" in record.timings_ms]
    shares = {"p50": percentile(totals_s, 0.5), "p95": percentile(totals_s, 0.95), "longest": max(totals_s)}
    return {name: round(seconds, 2) for name, seconds in shares.items()}


if __name__ == "__main__":
    main()
