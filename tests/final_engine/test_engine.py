from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest
import redis
from PIL import Image

from benchmarks.bundle import Parts
from core.recipe import Handoff, StyleUse
from core.render import State
from final_engine.door import RenderWish
from sampling.safety import ImageClassifier
from shared_cache.lanes import STANDARD, lane_name
from shared_cache.previews import kept_previews
from tests.final_engine.conftest import LEASE_S, FinalPath, following
from tests.makers import a_final_recipe


def picture_of(path: FinalPath, record_images: list[dict[str, object]], index: int = 0) -> Image.Image:
    return Image.open(io.BytesIO(path.objects.get(str(record_images[index]["key"]))))


def test_render_ends_done_with_picture_and_metadata(path: FinalPath) -> None:
    (record,) = path.ended(path.submit(prompt="テスト 😀 a cat", seed=2**53 - 1, width=100, height=120))
    assert record.state is State.DONE and record.step == 6 and len(record.batch_sizes) == 6
    image = picture_of(path, record.images)
    assert image.size == (100, 120)
    assert json.loads(image.text["firstlight"])["prompt"] == "テスト 😀 a cat"  # type: ignore[attr-defined]
    assert "Seed: 9007199254740991" in image.text["parameters"]  # type: ignore[attr-defined]
    assert {"queue", "encode", "denoise", "decode", "safety", "publish", "total"} <= set(record.timings_ms)


def test_render_of_several_has_one_seed_each(path: FinalPath) -> None:
    (record,) = path.ended(path.submit(n=3, seed=5))
    assert [image["seed"] for image in record.images] == [5, 6, 7]
    assert len({image["sha256"] for image in record.images}) == 3


def test_renders_of_different_steps_samplers_and_guidance_share_batches(path: FinalPath) -> None:
    wishes = [
        {"steps": 4, "sampler": "euler_a"},
        {"steps": 8, "sampler": "dpmpp_2m"},
        {"steps": 6, "sampler": "ddim", "guidance_scale": 1.0},
    ]
    records = path.ended(*(path.submit(**wish) for wish in wishes))  # type: ignore[arg-type]
    assert {record.state for record in records} == {State.DONE}
    assert max(records[1].batch_sizes) == 3


def test_same_recipe_same_picture_alone_and_in_company(path: FinalPath) -> None:
    (alone,) = path.ended(path.submit(seed=11))
    together = path.ended(path.submit(seed=11), path.submit(seed=3, prompt="a castle"))
    first, second = (np.asarray(picture_of(path, r.images)).astype(int) for r in (alone, together[0]))
    assert np.abs(first - second).max() <= 1


def test_base_is_bit_equal_after_a_style(path: FinalPath) -> None:
    (before,) = path.ended(path.submit(seed=4))
    (styled,) = path.ended(path.submit(seed=4, styles=(StyleUse("ink", 1.0),)))
    (after,) = path.ended(path.submit(seed=4))
    assert np.array_equal(*(np.asarray(picture_of(path, r.images)) for r in (before, after)))
    assert before.images[0]["sha256"] != styled.images[0]["sha256"]


def test_parallel_renders_keep_their_own_style(path: FinalPath) -> None:
    records = path.ended(path.submit(styles=(StyleUse("ink", 0.8),)), path.submit(styles=(StyleUse("noto", 0.5),)))
    assert [record.recipe.styles[0].id for record in records] == ["ink", "noto"]
    assert {record.state for record in records} == {State.DONE}


def test_cancel_stops_within_one_step(path: FinalPath) -> None:
    record = path.submit(steps=50)
    path.tick_until(lambda: path.look(record).step >= 2)
    path.renders.cancel(record.id)
    path.engine.tick()
    assert path.loop.rows == [] and path.look(record).state is State.CANCELLED
    path.engine.tick()
    assert path.look(record).state is State.CANCELLED and path.look(record).images == []


def test_cancelled_while_queued_is_never_stepped(path: FinalPath) -> None:
    record = path.submit()
    path.renders.cancel(record.id)
    assert path.engine.tick() is False and path.look(record).step == 0


def test_match_follows_the_preview_more_than_fresh(path: FinalPath) -> None:
    path.a_preview(seed=21)
    records = path.ended(*(path.submit(seed=21, steps=12, **following(mode)) for mode in Handoff))
    similar = {record.recipe.handoff: record.handoff["similarity"] for record in records}
    assert similar[Handoff.MATCH] > similar[Handoff.FRESH]
    assert all(-1 <= value <= 1 for value in similar.values())


def test_match_carries_latents_up_when_the_sizes_differ(path: FinalPath) -> None:
    path.a_preview(seed=2)
    (record,) = path.ended(path.submit(seed=2, width=144, height=112, **following(Handoff.MATCH)))
    assert record.state is State.DONE and record.handoff["similarity"] is not None


def test_blocked_when_the_classifier_refuses(client: redis.Redis, parts: Parts, tmp_path: object) -> None:
    path = FinalPath(client, parts, ImageClassifier(1e-9), tmp_path).start()  # type: ignore[arg-type]
    try:
        (record,) = path.ended(path.submit(steps=4))
    finally:
        path.close()
    assert record.state is State.BLOCKED and record.images == [] and record.error is not None
    assert not [event for _, event in path.events.read(record.id) if event["type"] == "glimpse"]


def test_failed_encoding_ends_one_render_alone(path: FinalPath, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = path.parts.encoder.encode

    def broken(prompt: str, styles: tuple[StyleUse, ...] = ()) -> object:
        if prompt == "broken":
            raise RuntimeError("out of memory")
        return encode(prompt, styles)

    monkeypatch.setattr(path.parts.encoder, "encode", broken)
    bad, good = path.ended(path.submit(prompt="broken"), path.submit(prompt="a dog"))
    assert bad.state is State.FAILED and bad.error is not None and "out of memory" in bad.error["message"]
    assert good.state is State.DONE


def test_not_finite_latents_fail_the_render_never_a_black_picture(path: FinalPath) -> None:
    record = path.submit(steps=10)
    path.tick_until(lambda: path.look(record).step >= 2)
    path.loop.rows[0].latents.fill_(float("nan"))
    (record,) = path.ended(record)
    assert record.state is State.FAILED and record.error is not None and record.error["code"] == "non-finite"


@pytest.mark.parametrize("call", ["progress_many", "hand_over"])
def test_no_render_is_lost_when_the_queue_is_away_after_a_step(
    path: FinalPath, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ask, away = getattr(path.renders, call), iter([False] * (call == "progress_many") * 5 + [True, True])

    def asked(*args: object) -> object:
        if next(away, False):
            raise redis.ConnectionError("away")
        return ask(*args)

    monkeypatch.setattr(path.renders, call, asked)
    record = path.submit(steps=6)
    with pytest.raises(redis.ConnectionError):
        path.ended(record)
    with pytest.raises(redis.ConnectionError):
        path.engine.tick()
    (record,) = path.ended(record)
    assert record.state is State.DONE and path.engine.idle()


def test_no_render_is_lost_when_the_queue_is_away_before_its_first_step(
    path: FinalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.a_preview(seed=2)
    record = path.submit(seed=2, **following(Handoff.MATCH))
    kept = kept_previews(path.client)
    away = iter([True])

    def get(render_id: str) -> object:
        if next(away, False):
            raise redis.ConnectionError("away")
        return kept.get(render_id)

    monkeypatch.setattr(path.engine._kept, "get", get)
    with pytest.raises(redis.ConnectionError):
        path.ended(record)
    (record,) = path.ended(record)
    assert record.state is State.DONE


def test_leaving_engine_finishes_what_it_has_and_takes_nothing(path: FinalPath) -> None:
    record = path.submit()
    path.tick_until(lambda: path.look(record).step >= 1)
    waits = path.submit(prompt="a dog")
    path.engine.stop_taking()
    assert not path.engine.idle()
    (record,) = path.ended(record)
    assert record.state is State.DONE and path.engine.idle()
    assert path.look(waits).state is State.QUEUED


def test_leaving_engine_hands_back_what_is_not_done(path: FinalPath) -> None:
    record = path.submit(steps=30)
    path.tick_until(lambda: path.look(record).step >= 2)
    path.engine.stop_taking()
    path.engine.hand_back()
    assert path.engine.idle() and path.loop.rows == []
    assert path.look(record).state is State.QUEUED and path.renders.position(record.id) == 0
    assert (path.measured("wasted_steps_total", pool="final") or 0) >= 2
    assert [entry.render_id for entry in path.lanes_of("heir").take([record.id])] == [record.id]


def test_a_dead_workers_render_is_taken_over(path: FinalPath) -> None:
    record = path.submit()
    (entry,) = path.lanes_of("dead").take([record.id])
    path.renders.claim(entry.render_id, 3)
    time.sleep(LEASE_S)
    (record,) = path.ended(record)
    assert record.state is State.DONE and record.attempt == 2


def test_a_render_that_kills_workers_fails_after_its_attempts(path: FinalPath) -> None:
    record = path.submit()
    for n in range(3):
        lanes = path.lanes_of(f"dead{n}")
        entries = lanes.take([record.id]) or lanes.take_over(0)
        path.renders.claim(entries[0].render_id, 3)
    time.sleep(LEASE_S)
    (record,) = path.ended(record)
    assert record.state is State.FAILED and record.error is not None and record.error["code"] == "attempts"


def test_doomed_while_queued_is_rejected_with_its_reason_and_never_stepped(path: FinalPath) -> None:
    record = path.admission.submit("ann", RenderWish(a_final_recipe(), deadline_s=60.0))
    path.client.hset(f"fl:render:{record.id}", "deadline_s", "0.01")
    path.engine.tick()
    found = path.look(record)
    assert (found.state, found.step) == (State.REJECTED, 0)
    assert found.error is not None and found.error["code"] == "deadline"
    assert path.client.zcard("fl:queue") == path.client.zcard("fl:due") == 0


def test_broken_promise_makes_the_door_more_careful_and_a_kept_one_less(path: FinalPath) -> None:
    def caution() -> float:
        return path.engine._costs._meter.table().caution

    record = path.admission.submit("ann", RenderWish(a_final_recipe(), deadline_s=60.0))
    path.client.hset(f"fl:render:{record.id}", "deadline_s", "0.01")
    path.engine.tick()
    careful = caution()
    path.engine._reject(record.id)  # as a second worker does that saw the same queue
    assert caution() == careful
    path.ended(path.admission.submit("ann", RenderWish(a_final_recipe(steps=4), deadline_s=600.0)))
    assert 1.0 < caution() < careful


def test_doomed_while_running_stops_within_one_step(path: FinalPath) -> None:
    record = path.admission.submit("ann", RenderWish(a_final_recipe(steps=50), deadline_s=600.0))
    path.tick_until(lambda: path.look(record).step >= 2)
    (job,) = path.engine._jobs.values()
    job.record = replace(job.record, deadline_s=0.1)
    step = path.look(record).step
    path.engine.tick()
    assert path.loop.rows == [] and path.look(record).state is State.REJECTED
    assert path.look(record).step == step


def test_record_holds_what_was_predicted_and_what_it_took(path: FinalPath) -> None:
    (record,) = path.ended(path.submit(steps=8))
    times = record.timings_ms
    assert record.predicted_gpu_s > 0 and record.predicted_s >= record.predicted_gpu_s
    parts = sum(times[name] for name in ("encode", "steps", "decode", "safety", "publish"))
    assert times["gpu"] == pytest.approx(parts, abs=0.5)
    assert times["steps"] <= times["denoise"]


def test_glimpses_are_seen_on_the_way(path: FinalPath) -> None:
    record = path.submit(steps=16)
    seen: set[str] = set()

    def look() -> bool:
        seen.update(event["type"] for _, event in path.events.read(record.id))
        return path.look(record).state is State.DONE

    path.tick_until(look)
    assert "glimpse" in seen and "progress" in seen


def test_lost_group_is_made_again_and_the_render_runs(path: FinalPath) -> None:
    path.ended(path.submit(steps=4))
    path.client.flushall()
    (record,) = path.ended(path.submit(steps=4))
    assert record.state is State.DONE


def test_render_goes_on_where_it_is_when_its_lane_is_deleted(path: FinalPath) -> None:
    record = path.submit(steps=8)
    path.tick_until(lambda: path.look(record).step >= 2)
    path.client.delete(lane_name(STANDARD, record.bucket))
    assert path.renders.repair() == [record.id]
    (record,) = path.ended(record)
    assert (record.state, record.attempt, len(record.batch_sizes)) == (State.DONE, 1, 8)


def test_render_that_comes_to_its_late_holder_again_begins_anew(path: FinalPath) -> None:
    record = path.submit(steps=8)
    path.tick_until(lambda: path.look(record).step >= 2)
    path.client.delete(lane_name(STANDARD, record.bucket))
    path.renders.claim(record.id, 3)  # by another worker, which is gone before its first step
    assert path.renders.repair() == [record.id]
    (record,) = path.ended(record)
    assert record.state is State.DONE
