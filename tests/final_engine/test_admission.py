from __future__ import annotations

import pytest

from core.cost import CostTable
from core.errors import BlockedPrompt, Conflict, InvalidInput, Overloaded
from core.recipe import Handoff
from core.render import State
from final_engine.admission import RenderWish
from shared_cache.costs import Costs
from tests.final_engine.conftest import FinalPath
from tests.makers import a_final_recipe


def test_submit_queues_with_position_and_prediction(path: FinalPath) -> None:
    first, second = path.submit(), path.submit()
    assert (first.state, path.renders.position(second.id)) == (State.QUEUED, 1)
    assert second.predicted_s > first.predicted_s > 0


def test_submit_refuses_what_cannot_meet_its_deadline_and_says_what_would_fit(path: FinalPath) -> None:
    Costs(path.client, "0").save(CostTable(0.01, 0.05, 0.1, {"128x128": {2: 0.1}}))
    with pytest.raises(Overloaded) as caught:
        path.admission.submit("ann", RenderWish(a_final_recipe(steps=50), deadline_s=2.0))
    assert caught.value.fits == {"steps": 18} and caught.value.predicted_s > 5
    assert path.renders.unfinished() == []
    fits = path.admission.submit("ann", RenderWish(a_final_recipe(steps=18), deadline_s=2.0))
    assert fits.state is State.QUEUED


def test_submit_refuses_when_the_lane_is_full(path: FinalPath) -> None:
    small = path.admit_with(capacity=2)
    for _ in range(2):
        small.submit("ann", RenderWish(a_final_recipe()))
    with pytest.raises(Overloaded) as caught:
        small.submit("ann", RenderWish(a_final_recipe()))
    assert caught.value.retry_after_s >= 1


def test_same_idempotency_key_gives_the_same_render_even_when_full(path: FinalPath) -> None:
    small = path.admit_with(capacity=1)
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
