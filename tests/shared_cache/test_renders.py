"""Records: created once, read back whole, found again, in order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from core.errors import Conflict, NotFound, Overloaded, OverQuota
from core.recipe import Handoff, Sampler, StyleUse
from core.render import TERMINAL, State
from shared_cache import keys
from shared_cache.events import Events
from shared_cache.queue import Room
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_recipe, a_record, ends, lanes, running, take


@pytest.fixture
def renders(client: redis.Redis) -> Renders:
    return Renders(client)


def test_record_is_read_back_whole(renders: Renders) -> None:
    recipe = a_recipe(
        "テスト 😀 \u202e \u200b", seed=2**53 - 1, sampler=Sampler.LCM, handoff=Handoff.MATCH,
        styles=(StyleUse("ink", 0.1), StyleUse("noto", -1.5)),
    )  # fmt: skip
    record = a_record(
        recipe=recipe, owner="an owner:with/odd\nname", n=4, preview_id="p1", created_s=1764455667.1234567,
        timings_ms={"admit": 1.25}, batch_sizes=[1, 2], handoff={"mode": "match", "similarity": None},
        images=[{"url": "/x", "seed": 3}], error={"code": "x", "message": "y"}, deadline_s=2.5,
    )  # fmt: skip
    assert renders.create(record, LANE) == record
    assert renders.get("r1") == record
    assert renders.get("r2") is None


def test_each_render_keeps_its_own_settings_when_many_are_queued_at_once(renders: Renders) -> None:
    def create(number: int) -> None:
        recipe = a_recipe(f"picture {number}", seed=number, styles=(StyleUse(f"style-{number}", number / 10),))
        renders.create(a_record(f"r{number}", recipe=recipe), LANE)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(16):
        record = renders.get(f"r{number}")
        assert record is not None
        assert (record.recipe.seed, record.recipe.styles) == (number, (StyleUse(f"style-{number}", number / 10),))


def test_create_returns_the_earlier_render_when_the_idempotency_key_is_used_again(
    client: redis.Redis, renders: Renders
) -> None:
    first = renders.create(a_record("r1"), LANE, ("key", "hash"))
    assert renders.create(a_record("r2"), LANE, ("key", "hash")) == first
    assert renders.find("ann", ("key", "hash")) == first
    assert renders.get("r2") is None
    assert len(take(lanes(client), 9)) == 1
    assert renders.create(a_record("r3", owner="bob"), LANE, ("key", "hash")).id == "r3"


def test_create_refuses_when_the_idempotency_key_was_used_for_another_body(renders: Renders) -> None:
    renders.create(a_record("r1"), LANE, ("key", "hash"))
    with pytest.raises(Conflict):
        renders.create(a_record("r2"), LANE, ("key", "other"))
    assert renders.get("r2") is None


def test_create_queues_once_when_thirty_two_send_the_same_key(client: redis.Redis, renders: Renders) -> None:
    made = []

    def create(number: int) -> None:
        made.append(renders.create(a_record(f"r{number}"), LANE, ("key", "hash")).id)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 32 and len(set(made)) == 1
    assert len(take(lanes(client), 40)) == 1


@pytest.mark.parametrize(
    ("room", "refusal"), [(Room(3, 9), Overloaded), (Room(9, 3), OverQuota)], ids=["of all", "of one owner"]
)
def test_no_more_are_let_in_than_there_is_room_for_when_all_come_at_once(
    renders: Renders, room: Room, refusal: type[Overloaded]
) -> None:
    def create(number: int) -> object:
        try:
            return renders.create(a_record(f"r{number}"), LANE, room=room).id
        except Overloaded as error:
            return type(error)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(create, range(8)))
    assert found.count(refusal) == 5 and len(renders.unfinished()) == 3


def test_place_of_a_render_that_ended_or_vanished_is_free_again(client: redis.Redis, renders: Renders) -> None:
    room = Room(9, 2)
    for name in ("r1", "r2"):
        renders.create(a_record(name), LANE, room=room)
    renders.cancel("r1")
    client.delete(keys.render("r2"))
    renders.repair()
    for name in ("r3", "r4"):
        renders.create(a_record(name), LANE, room=room)
    with pytest.raises(OverQuota):
        renders.create(a_record("r5"), LANE, room=room)
    renders.create(a_record("r6", owner="bob"), LANE, room=room)


@pytest.mark.parametrize("key", ["", "a" * 10_000, "a b\r\n\0", "../x", "\ud800"])
def test_any_idempotency_key_works(renders: Renders, key: str) -> None:
    renders.create(a_record("r1"), LANE, (key, "hash"))
    again = renders.create(a_record("r2"), LANE, (key, "hash"))
    assert again.id == ("r1" if key else "r2")


def test_create_again_with_the_same_id_changes_nothing(client: redis.Redis, renders: Renders) -> None:
    first = renders.create(a_record(), LANE)
    assert renders.create(a_record(created_s=1.0), LANE) == first
    assert len(take(lanes(client), 9)) == 1


def test_render_that_ended_before_it_began_is_kept_but_not_queued(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(state=State.BLOCKED), LANE)
    assert renders.position("r1") is None
    assert take(lanes(client), 1) == []
    assert ends(Events(client).read("r1")) == ["blocked"]
    assert renders.unfinished() == []


def test_position_counts_the_queued_ones_before(renders: Renders) -> None:
    for number in range(4):
        renders.create(a_record(f"r{number}", created_s=float(number)), LANE)
    assert [renders.position(f"r{n}") for n in range(4)] == [0, 1, 2, 3]
    renders.claim("r0", 3)
    renders.cancel("r2")
    assert [renders.position(f"r{n}") for n in range(4)] == [None, 0, None, 1]


def test_history_gives_the_owners_own_newest_first(renders: Renders) -> None:
    for number in range(5):
        renders.create(a_record(f"r{number}", created_s=float(number)), LANE)
    renders.create(a_record("other", owner="bob"), LANE)
    assert [record.id for record in renders.history("ann", 2)] == ["r4", "r3"]
    assert [record.id for record in renders.history("ann", 9, before_s=3.0)] == ["r2", "r1", "r0"]
    assert renders.history("nobody", 5) == []


def test_history_forgets_records_that_expired(client: redis.Redis, renders: Renders) -> None:
    for number in range(2):
        renders.create(a_record(f"r{number}"), LANE)
    client.delete(keys.render("r0"))
    assert [record.id for record in renders.history("ann", 9)] == ["r1"]
    assert client.zcard(keys.renders("ann")) == 1


def test_unfinished_gives_all_that_have_not_ended(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client, "r1")
    renders.create(a_record("r2"), LANE)
    assert [found.id for found in renders.unfinished()] == ["r1", "r2"]
    renders.finish("r1", record.attempt, State.DONE)
    renders.cancel("r2")
    assert renders.unfinished() == []


def test_timings_and_handoff_are_merged_when_stages_add_theirs(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client)
    assert renders.advance("r1", record.attempt, State.RUNNING, timings_ms={"queue_ms": 1.5}, handoff={"mode": "match"})
    assert renders.advance("r1", record.attempt, State.DECODING, timings_ms={"denoise_ms": 20}, predicted_s=3.0)
    done = {"timings_ms": {"decode_ms": 3}, "handoff": {"similarity": 0.94}, "images": [{"url": "u"}]}
    assert renders.finish("r1", record.attempt, State.DONE, **done)
    found = renders.get("r1")
    assert found is not None
    assert found.timings_ms == {"queue_ms": 1.5, "denoise_ms": 20, "decode_ms": 3}
    assert found.handoff == {"mode": "match", "similarity": 0.94}
    assert (found.predicted_s, found.images, found.state) == (3.0, [{"url": "u"}], State.DONE)


def test_unknown_field_is_refused_before_anything_is_written(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client)
    with pytest.raises(TypeError, match="prgress"):
        renders.advance("r1", record.attempt, State.DECODING, prgress=3)
    with pytest.raises(ValueError, match="not terminal"):
        renders.finish("r1", record.attempt, State.RUNNING)
    assert renders.get("r1") == record


def test_progress_notes_steps_and_batch_sizes(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client)
    assert renders.progress("r1", record.attempt, 1, 3)
    assert renders.progress_many([("r1", record.attempt, 2, 4), ("gone", 1, 1, 1)]) == [True, False]
    found = renders.get("r1")
    assert found is not None and (found.step, found.batch_sizes) == (2, [3, 4])
    assert renders.progress_many([]) == []


def test_cancel_names_what_is_missing(renders: Renders) -> None:
    with pytest.raises(NotFound, match="r9"):
        renders.cancel("r9")


def test_one_of_many_that_cancel_at_once_is_the_one_that_did(renders: Renders) -> None:
    renders.create(a_record("r1"), LANE)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(renders.cancel, ["r1"] * 16))
    assert {record.state for record, _ in answers} == {State.CANCELLED}
    assert sum(ended for _, ended in answers) == 1


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_ended_render_stays_as_it_is_when_cancelled(client: redis.Redis, renders: Renders, state: State) -> None:
    _, record = running(client)
    renders.finish("r1", record.attempt, state)
    found, ended = renders.cancel("r1")
    assert (found.state, ended) == (state, False)
    assert ends(Events(client).read("r1")) == [state]


def test_record_that_cannot_be_read_is_taken_for_none(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1"), LANE)
    renders.create(a_record("r2"), LANE)
    client.hset(keys.render("r1"), "recipe", "{")
    assert renders.get("r1") is None
    assert renders.claim("r1", 3) is None
    assert [record.id for record in renders.history("ann", 9)] == ["r2"]
