"""Work for one model and version is left alone by workers of another."""

from __future__ import annotations

import redis

from core.render import State
from shared_cache import keys
from shared_cache.lanes import Stream, decode_stage
from shared_cache.mailbox import Mailbox
from shared_cache.queue import Lanes
from shared_cache.renders import Renders
from tests.shared_cache.makers import BUCKET, LANE, MODEL, a_recipe, a_record, a_request, running, take

OTHER = "storybook@2"


def lanes_of(client: redis.Redis, model: str, consumer: str = "w") -> Lanes:
    return Lanes(client, [BUCKET], consumer, model=model)


def test_render_is_taken_by_its_own_version_alone(client: redis.Redis) -> None:
    renders = Renders(client)
    renders.create(a_record("r1"), LANE)
    renders.create(a_record("r2", recipe=a_recipe(model_version="2")), LANE)
    assert [entry.render_id for entry in take(lanes_of(client, OTHER), 9)] == ["r2"]
    assert take(lanes_of(client, "another@1"), 9) == []
    assert [entry.render_id for entry in take(lanes_of(client, MODEL), 9)] == ["r1"]


def test_render_of_a_dead_worker_is_taken_over_by_its_own_version_alone(client: redis.Redis) -> None:
    entry, _ = running(client, "r1")
    other_entry, _ = running(client, "r2", recipe=a_recipe(model_version="2"))
    assert lanes_of(client, OTHER).take_over(0) == [other_entry]
    assert lanes_of(client, "another@1").take_over(0) == []
    assert lanes_of(client, MODEL).take_over(0, count=1) == [entry]


def test_many_of_another_version_do_not_hide_ours(client: redis.Redis) -> None:
    for number in range(100):
        running(client, f"r{number}")
    entry, _ = running(client, "ours", recipe=a_recipe(model_version="2"))
    assert lanes_of(client, OTHER).take_over(0, count=1) == [entry]


def test_record_without_the_field_is_known_by_its_recipe(client: redis.Redis) -> None:
    running(client, "held")
    Renders(client).create(a_record("waits"), LANE)
    for name in ("held", "waits"):
        client.hdel(keys.render(name), "model")
    assert take(lanes_of(client, OTHER), 9) == [] and lanes_of(client, OTHER).take_over(0) == []
    assert [entry.render_id for entry in take(lanes_of(client, MODEL), 9)] == ["waits"]
    assert [entry.render_id for entry in lanes_of(client, MODEL, "heir").take_over(0, count=1)] == ["held"]


def test_latents_go_to_the_decoder_of_their_version(client: redis.Redis) -> None:
    entry, record = running(client)
    stage = decode_stage(record.recipe.model)
    assert Renders(client).hand_over(entry, record.attempt, stage, State.DECODING, "r1", b"latents")
    other = decode_stage(OTHER)
    assert Stream(client, other, other, "d2").pull(9) == []
    assert [found.render_id for found in Stream(client, stage, stage, "d1").pull(9)] == ["r1"]
    assert Stream(client, other, other, "d2").take_over(0) == []


def test_preview_waits_for_its_own_version(client: redis.Redis) -> None:
    mine, other = Mailbox(client, MODEL), Mailbox(client, OTHER)
    mine.post(a_request("s1"))
    assert other.take(9) == []
    assert [request.session for request in mine.take(9)] == ["s1"]


def test_session_that_asks_another_version_leaves_the_first(client: redis.Redis) -> None:
    mine, other = Mailbox(client, MODEL), Mailbox(client, OTHER)
    mine.post(a_request("s1", rev=1))
    mine.post(a_request("s1", rev=2, model_version="2"))
    assert mine.take(9) == []
    assert [request.rev for request in other.take(9)] == [2]
