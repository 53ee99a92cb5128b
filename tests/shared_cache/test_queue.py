"""Who is next: owners take turns, and what is taken is exactly what was chosen."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import redis

from core.scheduler import NO_DEADLINE, Task
from shared_cache.lanes import lane_name
from shared_cache.queue import Backlog
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, lanes, running, take


@pytest.fixture
def renders(client: redis.Redis) -> Renders:
    return Renders(client)


def names(found: Sequence[Task]) -> list[str]:
    return [task.id for task in found]


def test_owners_take_turns_by_the_work_they_ask_for(client: redis.Redis, renders: Renders) -> None:
    for number in range(4):
        renders.create(a_record(f"ann{number}", "ann", work_s=1.0), LANE)
    for number in range(2):
        renders.create(a_record(f"bob{number}", "bob", work_s=2.0), LANE)
    assert names(lanes(client).peek()) == ["ann0", "bob0", "ann1", "ann2", "bob1", "ann3"]


def test_newcomer_to_a_busy_queue_is_not_behind_all_of_it(client: redis.Redis, renders: Renders) -> None:
    for number in range(50):
        renders.create(a_record(f"ann{number}", "ann", work_s=1.0), LANE)
    take(lanes(client), 10)
    renders.create(a_record("bob", "bob", work_s=1.0), LANE)
    assert renders.position("bob") in (0, 1)


def test_equal_owners_keep_the_order_in_which_they_came(client: redis.Redis, renders: Renders) -> None:
    for number in range(12):
        renders.create(a_record(f"r{number}", f"owner{number}", work_s=1.0), LANE)
    assert names(lanes(client).peek()) == [f"r{number}" for number in range(12)]


def test_cancelled_renders_give_their_owner_the_share_back(client: redis.Redis, renders: Renders) -> None:
    for number in range(3):
        renders.create(a_record(f"ann{number}", "ann", work_s=5.0), LANE)
        renders.cancel(f"ann{number}")
    renders.create(a_record("again", "ann", work_s=5.0), LANE)
    renders.create(a_record("bob", "bob", work_s=5.0), LANE)
    assert names(lanes(client).peek()) == ["again", "bob"]


def test_peek_shows_what_a_policy_needs_and_takes_nothing(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1", rows=4, n=2, steps=30, deadline_s=8.0, created_s=100.0), LANE)
    renders.create(a_record("r2"), LANE)
    (first, second) = lanes(client).peek()
    assert (first.rows, first.images, first.steps, first.due_s) == (4, 2, 30, 108.0)
    assert second.due_s == NO_DEADLINE
    assert len(lanes(client).peek()) == 2


def test_peek_leaves_out_buckets_that_the_worker_cannot_run(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1", bucket="999x999"), lane_name("standard", "999x999"))
    renders.create(a_record("r2"), LANE)
    assert names(lanes(client).peek()) == ["r2"]


def test_take_gives_exactly_what_was_chosen(client: redis.Redis, renders: Renders) -> None:
    for number in range(4):
        renders.create(a_record(f"r{number}"), LANE)
    mine = lanes(client)
    assert [entry.render_id for entry in mine.take(["r2", "r0", "unknown"])] == ["r2", "r0"]
    assert mine.take(["r2"]) == []
    assert names(mine.peek()) == ["r1", "r3"]
    assert mine.depth()[LANE] == 2


def test_several_that_choose_the_same_get_it_once(client: redis.Redis, renders: Renders) -> None:
    for number in range(20):
        renders.create(a_record(f"r{number}"), LANE)
    got: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        entries = lanes(client, name).take([f"r{number}" for number in range(20)])
        with lock:
            got.extend(entry.render_id for entry in entries)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"r{number}" for number in range(20))


def test_take_mends_a_lane_that_was_deleted(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1"), LANE)
    client.delete(LANE)
    (entry,) = lanes(client).take(["r1"])
    assert lanes(client, "other").take_over(0) == [entry]


def test_holder_keeps_its_entry_when_the_group_is_deleted(client: redis.Redis, renders: Renders) -> None:
    entry, _ = running(client)
    client.xgroup_destroy(LANE, "final")
    mine, other = lanes(client), lanes(client, "other")
    assert mine.heartbeat([entry]) == []
    assert other.heartbeat([entry]) == [entry]
    assert renders.repair() == []


def test_repair_queues_what_a_dead_worker_held_in_a_deleted_group(client: redis.Redis, renders: Renders) -> None:
    running(client)
    client.xgroup_destroy(LANE, "final")
    assert renders.repair() == ["r1"]
    assert renders.repair() == []
    (entry,) = take(lanes(client, "other"), 1)
    record = renders.claim(entry.render_id, 3)
    assert record is not None and record.attempt == 2


def test_repair_looks_at_some_at_a_time(client: redis.Redis, renders: Renders) -> None:
    for number in range(5):
        renders.create(a_record(f"r{number}"), LANE)
    client.delete(LANE)
    mended = [renders.repair(limit=2) for _ in range(3)]
    assert [len(found) for found in mended] == [2, 2, 1]


def test_ahead_counts_what_runs_and_what_goes_before(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client, "r1", work_s=8.0, steps=8)
    renders.progress("r1", record.attempt, 2, 1)
    for number in range(3):
        renders.create(a_record(f"bob{number}", "bob", work_s=4.0), LANE)
    for_cleo, for_bob = Backlog(client).ahead_of("cleo"), Backlog(client).ahead_of("bob")
    assert (for_cleo.unfinished, len(for_cleo.running), for_cleo.running_s) == (4, 1, 6.0)
    assert (for_cleo.work_before_s(), for_bob.work_before_s()) == (4.0, 12.0)
    assert [claim.id for claim in for_cleo.waiting] == ["bob0", "bob1", "bob2"]


def test_ahead_takes_what_follows_denoising_off_the_deadline(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1", work_s=4.0, predicted_gpu_s=5.0, created_s=100.0, deadline_s=10.0), LANE)
    (claim,) = Backlog(client).ahead_of("ann").waiting
    assert (claim.work_s, claim.due_s) == (4.0, 109.0)


def test_ahead_of_very_many_is_their_mean(client: redis.Redis, renders: Renders) -> None:
    for number in range(20):
        renders.create(a_record(f"r{number}", f"owner{number}", work_s=1.0), LANE)
    assert Backlog(client).ahead_of("ann", look=5).work_before_s() == pytest.approx(20.0)


def test_overdue_are_those_whose_deadline_passed(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("soon", created_s=100.0, deadline_s=5.0), LANE)
    renders.create(a_record("later", created_s=100.0, deadline_s=50.0), LANE)
    renders.create(a_record("never", created_s=100.0), LANE)
    assert [record.id for record in renders.overdue(110.0)] == ["soon"]
    renders.cancel("soon")
    assert renders.overdue(110.0) == []


def test_peek_asks_once_for_what_it_knows(client: redis.Redis, renders: Renders) -> None:
    mine = lanes(client)
    for number in range(40):
        renders.create(a_record(f"r{number}"), LANE)
    assert len(mine.peek()) == 32
    client.delete("fl:render:r1")  # what is known of r1 is not asked for again
    assert names(mine.peek(3)) == ["r0", "r1", "r2"]
    mine.take(["r0"])
    assert names(mine.peek(3)) == ["r1", "r2", "r3"]


def test_peek_reaches_past_many_that_are_not_for_this_worker(client: redis.Redis, renders: Renders) -> None:
    for number in range(70):
        renders.create(a_record(f"other{number}", bucket="999x999"), lane_name("standard", "999x999"))
    renders.create(a_record("mine"), LANE)
    assert names(lanes(client).peek()) == ["mine"]
