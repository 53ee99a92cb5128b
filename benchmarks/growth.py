"""What one render costs the queue as lanes, typing sessions and workers grow: it should stay the same.

python -m benchmarks.growth [--rounds 300]

Depths are measured in turns, each on a server of its own, so that what else happens on this machine meets all of them.
Workers are processes with a null model: they look, claim, tell of steps, renew their leases and finish, without torch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

import redis

from benchmarks.report import emit
from benchmarks.simulate import served
from core.recipe import Recipe, Sampler
from core.render import State
from core.wire import PreviewRequest
from shared_cache import keys
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis
from shared_cache.events import Events
from shared_cache.lanes import STANDARD, Entry, lane_name
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.metrics import Board
from shared_cache.queue import Backlog, Lanes, look_ahead
from shared_cache.records import Record
from shared_cache.registry import Registry, new_worker_id
from shared_cache.renders import Renders

DEPTHS = (100, 1_000, 10_000, 100_000)
SESSIONS = (20, 60, 200)
WORKERS = (1, 10, 50)
BUCKETS = ("128x128", "160x96", "96x160", "144x112", "112x144")
OWNERS = 200
ROWS, STEPS, STEP_S = 4, 8, 0.25  # of a null worker: renders at once, steps of each, seconds of a step
LEASE_S = 5.0
WINDOW_S = 10.0
Table = dict[str, dict[str, float]]  # median microseconds, by what is done, then by how many there are
KEPT = 1_000  # renders that wait while workers are counted


class Waiting:
    """A server with a number of renders that wait, and one worker's view of it."""

    def __init__(self, client: redis.Redis, depth: int) -> None:
        self.client = client
        self._numbers = count()
        self._renders, self._events, self._board = Renders(client), Events(client), Board(client)
        self._backlog, self._lanes = Backlog(client), Lanes(client, BUCKETS, "bench", model=a_recipe(0).model)
        self._held: list[tuple[Entry, Record]] = []
        for _ in range(depth):
            self.add()

    def add(self) -> None:
        record = a_record(next(self._numbers))
        self._renders.create(record, lane_name(STANDARD, record.bucket))

    def look(self) -> None:
        self._backlog.ahead_of(f"owner{next(self._numbers) % OWNERS}")

    def turn(self) -> dict[str, float]:
        """Microseconds of each thing that is done for a render, once; as many wait afterwards as before."""
        return {
            "look from the door": _us(self.look),
            "enqueue": _us(self.add),
            "claim": _us(self._claim),
            "tell of a step": _us(self._step),
            "read its events": _us(lambda: self._events.read(self._held[0][1].id)),
            "renew, tidy, take over": _us(self._keep),
            "finish": _us(self._finish),
            "metrics": _us(lambda: self._board.look(BUCKETS, a_recipe(0).model)),
        }

    def chores(self) -> dict[str, float]:
        """Of what one process does once a second for all."""
        return {"repair": _us(self._renders.repair), "tidy": _us(self._lanes.tidy)}

    def _claim(self) -> None:
        (entry,) = self._lanes.take([self._lanes.peek()[0].id])
        record = self._renders.claim(entry.render_id, 3)
        assert record is not None
        self._held = [(entry, record)]

    def _step(self) -> None:
        assert all(self._renders.progress_many([(record.id, record.attempt, 1, ROWS) for _, record in self._held]))

    def _keep(self) -> None:
        self._lanes.heartbeat([entry for entry, _ in self._held])
        self._lanes.tidy(every_s=1.0)
        self._lanes.take_over(LEASE_S)

    def _finish(self) -> None:
        for _, record in self._held:
            assert self._renders.finish(record.id, record.attempt, State.DONE)


def _us(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return 1e6 * (time.perf_counter() - began_s)


def a_recipe(seed: int, bucket: str = BUCKETS[0]) -> Recipe:
    width, height = (int(side) for side in bucket.split("x"))
    return Recipe(
        prompt="a cat on the beach",
        negative_prompt="",
        seed=seed,
        width=width,
        height=height,
        steps=STEPS,
        guidance_scale=4.0,
        sampler=Sampler.EULER,
        styles=(),
        model_id="null",
        model_version="0",
    )


def a_record(number: int) -> Record:
    bucket = BUCKETS[number % len(BUCKETS)]
    return Record(
        id=f"render{number}",
        owner=f"owner{number % OWNERS}",
        state=State.QUEUED,
        recipe=a_recipe(number, bucket),
        bucket=bucket,
        n=1,
        preview_id=None,
        attempt=0,
        created_s=time.time(),
        step=0,
        steps=STEPS,
        predicted_s=1.0,
        rows=2,
        work_s=0.5,
        handoff={"mode": "fresh", "similarity": None},
    )


@contextmanager
def a_server() -> Iterator[redis.Redis]:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as client:
        yield client


def by_depth(rounds: int, depths: Sequence[int] = DEPTHS) -> tuple[Table, Table]:
    """Of what is done for each render, and of what is done once a second; by depth."""
    with ExitStack() as cleanup:
        filled = {str(depth): Waiting(cleanup.enter_context(a_server()), depth) for depth in depths}
        each = _in_turns({name: waiting.turn for name, waiting in filled.items()}, rounds)
        return each, _in_turns({name: waiting.chores for name, waiting in filled.items()}, min(rounds, 50))


def by_sessions(rounds: int, sessions: Sequence[int] = SESSIONS) -> Table:
    """Likewise of a preview, by how many sessions type: each posts, and the pool takes all that waits."""
    with ExitStack() as cleanup:
        typing = {str(number): _Typing(cleanup.enter_context(a_server()), number) for number in sessions}
        return _in_turns({name: them.turn for name, them in typing.items()}, max(5, rounds // 10))


class _Typing:
    def __init__(self, client: redis.Redis, sessions: int) -> None:
        recipe = a_recipe(0)
        self._mailbox, self._replies = Mailbox(client, recipe.model), Replies(client)
        self._requests = [PreviewRequest(f"s{i}", f"s{i}", 1, f"p{i}", "web", 0.0, recipe) for i in range(sessions)]

    def turn(self) -> dict[str, float]:
        """Of one preview, while all others wait."""
        acts: dict[str, Callable[[PreviewRequest], object]] = {
            "post": self._mailbox.post,
            "take": lambda _: self._mailbox.take(1),
            "still wanted": lambda request: self._mailbox.closed([request.session]),
            "answer": lambda _: self._replies.push("web", bytes(8_000)),
            "read the answer": lambda _: self._replies.pop("web", 1),
        }
        return {name: statistics.fmean(_us(partial(act, one)) for one in self._requests) for name, act in acts.items()}


def _in_turns(turns: Mapping[str, Callable[[], dict[str, float]]], rounds: int) -> Table:
    for turn in turns.values():
        turn()
    rows = [{name: turn() for name, turn in turns.items()} for _ in range(rounds)]
    done = rows[0][next(iter(turns))]
    return {what: {name: statistics.median(row[name][what] for row in rows) for name in turns} for what in done}


def by_workers() -> dict[str, float]:
    """Microseconds of the server's processor for a render, from enqueued to finished, by number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        running = EmbeddedRedis(Path(folder))
        with connect(running.start()) as client:
            waiting = Waiting(client, KEPT)
            used_us = {str(number): _with_workers(number, running.url, waiting) for number in WORKERS}
        running.stop()
        return used_us


def _with_workers(number: int, url: str, waiting: Waiting) -> float:
    """The load is the workers' own: as many are added as were finished, in a window without their start and end."""
    fork = multiprocessing.get_context("fork")
    stop, client = fork.Event(), waiting.client
    idle = _cpu_us(client, 3.0)
    workers = [fork.Process(target=null_worker, args=(url, number, stop)) for _ in range(number)]
    for worker in workers:
        worker.start()
    while len(Registry(client).workers()) < number:
        time.sleep(0.1)
    began_s, used_us, finished = time.monotonic(), _used_us(client), 0
    while time.monotonic() - began_s < WINDOW_S * (3 if number == 1 else 1):
        for _ in range(KEPT - client.zcard(keys.QUEUE)):
            waiting.look()
            waiting.add()
            finished += 1
        time.sleep(0.1)
    seconds, spent_us = time.monotonic() - began_s, _used_us(client) - used_us
    stop.set()
    for worker in workers:
        worker.join()
    return (spent_us - idle * seconds) / finished


def null_worker(url: str, workers: int, stop: Event) -> None:
    """What a final worker asks of the queue, with a sleep in the place of each step."""
    client, me = connect(url), new_worker_id()
    renders, lanes, registry = Renders(client), Lanes(client, BUCKETS, me, model=a_recipe(0).model), Registry(client)
    board, jobs, beat_s, said_s = Board(client), dict[str, tuple[Entry, Record, int]](), 0.0, 0.0
    while not stop.is_set():
        now_s = time.monotonic()
        if now_s - said_s > 3.0:
            said_s = now_s
            registry.announce(me, {"roles": ["final"], "ready": True, "model": "null", "version": "0"})
            board.publish(me, "")
            renders.repair(every_s=1.0)
        if now_s - beat_s > LEASE_S / 4:
            beat_s = now_s
            lanes.heartbeat([entry for entry, _, _ in jobs.values()])
            lanes.tidy(every_s=1.0)
            lanes.take_over(LEASE_S)
        for entry in lanes.take([task.id for task in lanes.peek(look_ahead(workers))[: ROWS - len(jobs)]]):
            if (record := renders.claim(entry.render_id, 3)) is not None:
                jobs[record.id] = (entry, record, 0)
        time.sleep(STEP_S)
        jobs = {name: (entry, record, step + 1) for name, (entry, record, step) in jobs.items()}
        renders.progress_many([(record.id, record.attempt, step, ROWS) for _, record, step in jobs.values()])
        for name, (_, record, step) in list(jobs.items()):
            if step == STEPS:
                renders.finish(record.id, record.attempt, State.DONE)
                del jobs[name]
    lanes.hand_back({name: record.attempt for name, (_, record, _) in jobs.items()})
    registry.withdraw(me)


def _used_us(client: redis.Redis) -> float:
    used = cast(dict[str, float], client.info("cpu"))
    seconds: float = used["used_cpu_user"] + used["used_cpu_sys"]
    return 1e6 * seconds


def _cpu_us(client: redis.Redis, seconds: float) -> float:
    """What the server uses in a second of doing nothing."""
    before_us = _used_us(client)
    time.sleep(seconds)
    return (_used_us(client) - before_us) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    workers = by_workers()
    each, chores = by_depth(given.rounds)
    tables = {"waiting": each, "once a second": chores, "typing": by_sessions(given.rounds)}
    tables["workers"] = {"server's processor": workers}
    rows = [_row(kind, what, times) for kind, table in tables.items() for what, times in table.items()]
    figures = {
        kind: {what: {name: round(us, 1) for name, us in times.items()} for what, times in table.items()}
        for kind, table in tables.items()
    }
    ratios = {kind: _ratio(table) for kind, table in tables.items() if kind != "once a second"}
    config = {
        "rounds": given.rounds,
        "depths": DEPTHS,
        "sessions": SESSIONS,
        "workers": WORKERS,
        "owners": OWNERS,
        "kept": KEPT,
    }
    rows += [["", f"{kind}: all of it", "", "", f"{ratio:.2f}"] for kind, ratio in ratios.items()]
    emit("growth", config, {"us": figures, "ratios": ratios}, ["of", "what", "fewest, us", "most, us", "ratio"], rows)


def _row(kind: str, what: str, times: Mapping[str, float]) -> Sequence[Any]:
    first, *_, last = times.values()
    return [kind, what, f"{first:.0f}", f"{last:.0f}", f"{last / first:.2f}"]


def _ratio(table: Mapping[str, Mapping[str, float]]) -> float:
    """What all of it takes with the most, over what it takes with the fewest."""
    totals = [sum(column) for column in zip(*(times.values() for times in table.values()), strict=True)]
    ratio: float = totals[-1] / totals[0]
    return round(ratio, 3)


if __name__ == "__main__":
    main()
