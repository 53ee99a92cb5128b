from __future__ import annotations

from dataclasses import replace

import pytest

from core.cost import ANY, CostTable, Part
from core.errors import BlockedPrompt, Conflict, InvalidInput, Overloaded, OverQuota
from core.profile import Bucket
from core.recipe import Handoff
from core.render import State
from final_engine.admission import MIN_RETRY_S, UNKNOWN_RETRY_S
from final_engine.door import RenderWish
from shared_cache.queue import Room
from tests.final_engine.conftest import FinalPath
from tests.makers import a_final_recipe

COSTS = CostTable(
    {
        Part.ENCODE: {ANY: {1: 0.01}},
        Part.STEP: {"128x128": {2: 0.1}},
        Part.DECODE: {ANY: {1: 0.05}},
        Part.SAFETY: {ANY: {1: 0.05}},
        Part.PUBLISH: {ANY: {1: 0.05}},
    }
)


def test_submit_queues_with_position_and_prediction(path: FinalPath) -> None:
    first, second = path.submit(), path.submit()
    assert (first.state, path.renders.position(second.id)) == (State.QUEUED, 1)
    assert second.predicted_s > first.predicted_s > 0


def test_submit_refuses_what_cannot_meet_its_deadline_and_says_what_would_fit(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    with pytest.raises(Overloaded, match=r"2 is shorter than the work itself, 5\.16 s; .* steps 18") as caught:
        path.admission.submit("ann", RenderWish(a_final_recipe(steps=50), deadline_s=2.0))
    assert caught.value.fits == {"steps": 18} and caught.value.predicted_s > 5
    assert path.renders.unfinished() == []
    fits = path.admission.submit("ann", RenderWish(a_final_recipe(steps=18), deadline_s=2.0))
    assert fits.state is State.QUEUED


def test_deadline_that_only_the_queue_makes_too_short_is_told_apart(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    with pytest.raises(Overloaded, match=r"would be done in|would make renders late"):
        for _ in range(20):
            path.admission.submit("ann", RenderWish(a_final_recipe(steps=50), deadline_s=6.0))


def test_submit_refuses_when_the_lane_is_full(path: FinalPath) -> None:
    small = path.admit_with(room=Room(2, 2))
    for _ in range(2):
        small.submit("ann", RenderWish(a_final_recipe()))
    with pytest.raises(Overloaded) as caught:
        small.submit("ann", RenderWish(a_final_recipe()))
    assert caught.value.retry_after_s >= 1


def test_one_owner_leaves_room_for_others(path: FinalPath) -> None:
    small = path.admit_with(room=Room(4, 2))
    first, _ = (small.submit("ann", RenderWish(a_final_recipe()), (key, "h")) for key in ("a", "b"))
    with pytest.raises(OverQuota, match="2 of yours wait already") as caught:
        small.submit("ann", RenderWish(a_final_recipe()))
    assert caught.value.retry_after_s >= 1
    assert small.submit("ann", RenderWish(a_final_recipe()), ("a", "h")).id == first.id  # no new one
    small.submit("bob", RenderWish(a_final_recipe()))
    path.renders.cancel(first.id)
    small.submit("ann", RenderWish(a_final_recipe()))


def test_place_in_a_full_lane_is_promised_by_the_work_that_is_there(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    for _ in range(2):
        path.submit(steps=50)

    def retry_s(workers: int) -> float:
        with pytest.raises(Overloaded) as caught:
            path.admit_with(room=Room(2, 2), workers=lambda: workers).submit("bob", RenderWish(a_final_recipe()))
        return caught.value.retry_after_s

    work_s = COSTS.work_s("128x128", 50, 2, 8)
    assert work_s > 2 * MIN_RETRY_S
    assert [retry_s(workers) for workers in (1, 2)] == pytest.approx([work_s, work_s / 2])
    assert retry_s(0) == UNKNOWN_RETRY_S


def test_same_idempotency_key_gives_the_same_render_even_when_full(path: FinalPath) -> None:
    small = path.admit_with(room=Room(1, 1))
    wish = RenderWish(a_final_recipe())
    first = small.submit("ann", wish, ("k", "h"))
    assert small.submit("ann", wish, ("k", "h")).id == first.id
    with pytest.raises(Conflict):
        small.submit("ann", wish, ("k", "other"))
    with pytest.raises(Overloaded):
        small.submit("bob", wish, ("k", "h"))


@pytest.mark.parametrize("preview_id", ["nope", "p1"])
def test_submit_refuses_an_unknown_preview_and_somebody_elses(path: FinalPath, preview_id: str) -> None:
    path.a_preview(owner="bob")
    with pytest.raises(InvalidInput) as caught:
        path.submit(preview_id=preview_id, handoff=Handoff.MATCH)
    assert caught.value.field == "preview_id"


def test_submit_refuses_to_match_without_a_preview(path: FinalPath) -> None:
    with pytest.raises(InvalidInput, match="handoff"):
        path.submit(handoff=Handoff.MATCH)


def test_blocked_prompt_writes_nothing(path: FinalPath) -> None:
    with pytest.raises(BlockedPrompt):
        path.submit(prompt="a nude")
    assert path.client.keys("fl:render*") == []


def test_smaller_size_is_offered_before_fewer_steps(path: FinalPath) -> None:
    sizes = (Bucket(128, 128), Bucket(96, 96))
    small = replace(path.profile, final=replace(path.profile.final, buckets=sizes))
    path.costs.save("here", replace_steps({"128x128": {2: 0.1}, "96x96": {2: 0.03}}))
    with pytest.raises(Overloaded) as caught:
        path.admit_with(profile=small).submit("ann", RenderWish(a_final_recipe(steps=50), deadline_s=2.5))
    assert caught.value.fits == {"width": 96, "height": 96}
    assert "width 96, height 96" in caught.value.message


def test_another_shape_of_the_same_area_is_no_offer(path: FinalPath) -> None:
    sizes = (Bucket(128, 128), Bucket(144, 112), Bucket(96, 96), Bucket(128, 64))
    shapes = replace(path.profile, final=replace(path.profile.final, buckets=sizes))
    path.costs.save("here", replace_steps({str(size): {2: 0.1 if size == sizes[0] else 0.03} for size in sizes}))
    for (width, height), offered in (((128, 128), (96, 96)), ((130, 130), (96, 96))):
        wish = RenderWish(a_final_recipe(steps=50, width=width, height=height), deadline_s=2.5)
        with pytest.raises(Overloaded) as caught:
            path.admit_with(profile=shapes).submit("ann", wish)
        assert caught.value.fits == {"width": offered[0], "height": offered[1]}


def test_a_quarter_of_the_steps_is_the_least_that_is_offered(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    one_size = replace(path.profile, final=replace(path.profile.final, buckets=(Bucket(128, 128),)))
    least_s = COSTS.request_s("128x128", 6, 2, 1)
    for deadline_s, offered in ((least_s + 0.01, {"steps": 6}), (least_s - 0.01, None)):
        with pytest.raises(Overloaded) as caught:
            wish = RenderWish(a_final_recipe(steps=24), deadline_s=deadline_s)
            path.admit_with(profile=one_size).submit("ann", wish)
        assert caught.value.fits == offered


def test_no_deadline_is_promised_while_no_worker_is_ready(path: FinalPath) -> None:
    nobody = path.admit_with(workers=lambda: 0)
    with pytest.raises(Overloaded, match="no worker is ready") as caught:
        nobody.submit("ann", RenderWish(a_final_recipe(), deadline_s=600.0))
    assert caught.value.retry_after_s >= 1
    assert nobody.submit("ann", RenderWish(a_final_recipe())).state is State.QUEUED


def test_nothing_is_offered_where_nothing_fits(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    with pytest.raises(Overloaded) as caught:
        path.admission.submit("ann", RenderWish(a_final_recipe(), deadline_s=0.01))
    assert caught.value.fits is None and "fit" not in caught.value.message


def test_prediction_shares_the_work_among_the_workers(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    for _ in range(4):
        path.submit()
    one, four = (path.admit_with(workers=lambda n=n: n).submit("bob", RenderWish(a_final_recipe())) for n in (1, 4))
    assert four.predicted_s < one.predicted_s
    assert four.predicted_gpu_s == one.predicted_gpu_s == pytest.approx(COSTS.request_s("128x128", 6, 2))


def test_prediction_stretches_with_what_else_the_device_does(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    alone = path.submit(owner="ann")
    path.renders.cancel(alone.id)
    path.costs.save("here", replace(COSTS, stretch=3.0))
    shared = path.submit(owner="bob")
    assert shared.predicted_s - alone.predicted_s == pytest.approx(2 * 6 * 0.1)


def test_newcomer_is_promised_its_turn_not_the_end_of_the_queue(path: FinalPath) -> None:
    path.costs.save("here", COSTS)
    waits_s = [path.submit(owner="ann").predicted_s for _ in range(6)]
    assert path.submit(owner="bob").predicted_s < waits_s[3]


def replace_steps(steps: dict[str, dict[int, float]]) -> CostTable:
    return CostTable({**COSTS.seconds, Part.STEP: steps})
