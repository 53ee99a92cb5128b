"""Accept, watch, cancel, open, restore; nobody sees another's."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import expect

from sampling.picture import to_png
from tests.browser.conftest import PREVIEW_TIMEOUT_MS, RENDER_TIMEOUT_MS, Desk
from tests.makers import a_preview_recipe

FILE_DROP = """data => {
  const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], 'picture.png', { type: 'image/png' }));
  return transfer;
}"""

LIKE_ITS_PREVIEW = re.compile(r"^\d{1,3} % like its preview$")


def fewer_steps(desk: Desk, steps: int) -> None:
    """Finals of so many steps, to keep the tests short."""
    more = desk.page.locator("#fl-more")
    if not more.evaluate("details => details.open"):
        more.locator("summary").click()
    desk.page.get_by_label("Final steps").fill(str(steps))


def test_accepted_preview_becomes_a_render_with_similarity(desk: Desk, tmp_path: Path) -> None:
    fewer_steps(desk, 6)
    shown = desk.write("a cat on the beach")
    card = desk.done(desk.accept())
    expect(card.locator(".fl-card-status")).to_have_text(LIKE_ITS_PREVIEW, timeout=10_000)
    expect(card.locator(".fl-card-status")).to_have_attribute("title", re.compile("100 % is identical"))
    assert card.get_attribute("data-seed") == shown["seed"]

    card.get_by_role("button").first.click()
    viewer = desk.page.get_by_role("dialog")
    expect(viewer).to_contain_text("a cat on the beach")
    expect(viewer.locator(".fl-recipe")).to_contain_text("% like its preview")
    expect(viewer).to_contain_text(shown["seed"])
    expect(viewer.locator(".fl-recipe")).to_have_text(
        re.compile(r"painting\s[\d.]+\sm?s, .*computing time\s[\d.]+\sm?s$")
    )
    expect(viewer.get_by_role("slider")).to_be_focused()
    assert viewer.locator("img").evaluate_all("all => all.every(one => one.naturalWidth > 0 || !one.complete)")
    with desk.page.expect_download() as download:
        viewer.get_by_role("button", name="Download").click()
    picture = tmp_path / "picture.png"
    download.value.save_as(picture)
    desk.page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()
    expect(card.get_by_role("button").first).to_be_focused()
    restores_its_recipe(desk, picture, shown["seed"])


def restores_its_recipe(desk: Desk, picture: Path, seed: str) -> None:
    """A picture of ours, opened or dropped, brings text and seed back."""
    desk.box.fill("something else")
    desk.page.locator("#fl-more input[type=file]").set_input_files(picture)
    assert desk.shows("a cat on the beach")["seed"] == seed

    desk.box.fill("something else again")
    drop(desk, picture.read_bytes())
    assert desk.shows("a cat on the beach")["seed"] == seed


def drop(desk: Desk, picture: bytes) -> None:
    dropped = desk.page.evaluate_handle(FILE_DROP, base64.b64encode(picture).decode())
    desk.page.dispatch_event("#fl-stage", "drop", {"dataTransfer": dropped})


def test_dropped_preview_brings_its_text_back_and_leaves_renders_as_usual(desk: Desk) -> None:
    fewer_steps(desk, 4)
    recipe = a_preview_recipe("a fox in the snow", seed=77, steps=2)
    drop(desk, to_png(np.zeros((128, 128, 3), np.uint8), recipe, "preview"))
    assert desk.shows("a fox in the snow")["seed"] == "77"
    expect(desk.page.get_by_label("Final steps")).to_have_value("")
    expect(desk.page.locator("#fl-sampler")).to_have_value("")
    expect(desk.page.locator("#fl-preview-steps")).to_have_value("2")


def test_what_went_wrong_is_said_until_the_next_thing_is_done(desk: Desk) -> None:
    said = desk.page.locator("#fl-said")
    drop(desk, b"no picture of ours")
    expect(said).to_have_text("picture.png carries no Firstlight recipe.")
    desk.write("a cat on the beach at noon")
    expect(said).to_have_text("")
    count = desk.cards().count()
    for wrong in ("abc", ""):
        desk.page.locator("#fl-seed").fill(wrong)
        desk.page.keyboard.press("Control+Enter")
        expect(said).to_contain_text("seed: a whole number")
        assert desk.cards().count() == count
    desk.page.locator("#fl-seed").fill("77")
    expect(said).to_have_text("")


def test_newest_picture_is_awaited_when_accepted_while_behind(desk: Desk) -> None:
    fewer_steps(desk, 4)
    desk.write("a dog")
    desk.box.press("End")
    desk.box.press_sequentially(" at night", delay=5)
    card = desk.done(desk.accept())
    expect(card.locator(".fl-card-prompt")).to_have_text("a dog at night")


def test_render_is_cancelled_and_another_still_finishes(desk: Desk) -> None:
    fewer_steps(desk, 100)
    desk.write("a slow boat on the sea")
    slow = desk.page.locator(f".fl-card[data-id='{desk.accept()}']")
    expect(slow.locator(".fl-card-status")).to_contain_text(re.compile(r"· ~\d"))
    expect(slow).to_have_attribute("data-state", "running", timeout=RENDER_TIMEOUT_MS)
    expect(desk.page.locator("#fl-queue")).to_contain_text("1 rendering")
    desk.write("a fast boat on the sea")  # typing goes on meanwhile
    slow.get_by_role("button", name="Cancel").click()
    expect(slow).to_have_attribute("data-state", "cancelled", timeout=5_000)
    fewer_steps(desk, 4)
    desk.done(desk.accept())
    expect(slow).to_have_attribute("data-state", "cancelled")


def test_history_comes_back_when_the_page_is_reloaded_mid_render(desk: Desk) -> None:
    fewer_steps(desk, 12)
    desk.write("a sailboat on the sea")
    render_id = desk.accept()
    count = desk.cards().count()
    desk.open()
    expect(desk.box).to_have_value("a sailboat on the sea")
    expect(desk.cards()).to_have_count(count, timeout=10_000)
    desk.done(render_id)


def test_render_is_seen_to_finish_when_the_event_stream_is_cut(desk: Desk) -> None:
    desk.page.route("**/api/v1/events", lambda route: route.abort())
    desk.open()
    fewer_steps(desk, 4)
    desk.write("a kite in the sky")
    desk.done(desk.accept())
    desk.page.unroute("**/api/v1/events")
    desk.open()


def test_recipe_becomes_the_prompt_again(desk: Desk) -> None:
    desk.write("an unrelated text")
    card = desk.cards("done").last
    prompt = card.locator(".fl-card-prompt").inner_text()
    card.get_by_role("button").first.click()
    desk.page.get_by_role("button", name="Make this the prompt again").click()
    assert desk.shows(prompt)["seed"] == card.get_attribute("data-seed")
    expect(desk.box).to_be_focused()


def test_seed_of_the_picked_picture_becomes_the_seed_when_a_set_is_used_again(desk: Desk) -> None:
    fewer_steps(desk, 2)
    desk.page.get_by_role("group", name="Images").get_by_label("3").check()
    desk.write("a lighthouse on the sea")
    card = desk.done(desk.accept())
    desk.page.get_by_role("group", name="Images").get_by_label("1").check()
    expect(card.locator(".fl-card-status")).to_have_text("3 pictures", timeout=10_000)
    card.get_by_role("button").first.click()
    viewer = desk.page.get_by_role("dialog")
    expect(viewer.locator(".fl-recipe")).to_contain_text("% like its preview")
    last = viewer.locator(".fl-viewer-thumbs button").last
    last.click()
    expect(viewer.locator(".fl-recipe")).not_to_contain_text("% like its preview")
    seed = (last.get_attribute("aria-label") or "").split()[-1]
    assert seed != card.get_attribute("data-seed")
    viewer.get_by_role("button", name="Make this the prompt again").click()
    expect(desk.page.locator("#fl-seed")).to_have_value(seed)


def test_two_people_at_once_do_not_see_each_others_renders(new_desk: Callable[..., Desk]) -> None:
    one, other = new_desk().open(), new_desk().open()
    for desk, prompt in ((one, "a red apple"), (other, "a green pear")):
        fewer_steps(desk, 4)
        desk.box.fill(prompt)
    one.shows("a red apple")
    other.shows("a green pear")
    first, second = one.accept(), other.accept()
    one.done(first)
    other.done(second)
    for desk, prompt in ((one, "a red apple"), (other, "a green pear")):
        expect(desk.cards()).to_have_count(1)
        expect(desk.cards().locator(".fl-card-prompt")).to_have_text(prompt)
    status = one.page.evaluate("id => fetch(`api/v1/renders/${id}`).then(answer => answer.status)", second)
    assert status == 404


def test_refusal_is_said_beside_accept_when_the_server_has_no_room(desk: Desk) -> None:
    body = {"error": {"code": "overloaded", "message": "The queue is full.", "retry_after_s": 5.0}}
    desk.write("a cat")
    desk.page.route("**/api/v1/renders", lambda route: route.fulfill(status=503, json=body))
    desk.page.keyboard.press("Control+Enter")
    said = desk.page.locator("#fl-said")
    expect(said).to_have_text("The queue is full. Try again in 5.0 s.", timeout=PREVIEW_TIMEOUT_MS)
    desk.page.unroute("**/api/v1/renders")


def under_way(render_id: str, state: str, predicted_s: float) -> dict[str, Any]:
    """A render's record as the history gives it."""
    recipe = {"prompt": f"a {render_id}", "seed": 1, "width": 128, "height": 128}
    progress = {"step": 1, "steps": 25}
    here = {"id": render_id, "state": state, "recipe": recipe, "progress": progress, "images": [], "position": None}
    return here | {"created_s": time.time(), "predicted_s": predicted_s}


def test_renders_are_said_to_wait_when_their_worker_is_gone(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    history = [under_way("boat", "running", 90.0), under_way("kite", "queued", 95.0)]
    desk.page.route("**/api/v1/renders", lambda route: route.fulfill(json={"renders": history, "next": None}))
    waiting = {"ready": False, "reason": "waiting for a worker: there is none for final"}
    desk.page.route("**/readyz", lambda route: route.fulfill(status=503, json=waiting))
    desk.page.clock.install()
    desk.open()
    queue, statuses = desk.page.locator("#fl-queue"), desk.cards().locator(".fl-card-status")
    expect(queue).to_have_text(re.compile(r"^1 rendering, 1 waiting · ~\d"), timeout=10_000)
    desk.page.clock.fast_forward(9_000)
    expect(statuses).to_have_text(["waiting for a worker"] * 2)
    expect(queue).to_have_text("2 waiting")


def test_time_left_is_not_given_when_it_has_passed(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    history = [under_way("boat", "running", 2.5)]
    desk.page.route("**/api/v1/renders", lambda route: route.fulfill(json={"renders": history, "next": None}))
    desk.open()
    expect(desk.page.locator("#fl-queue")).to_have_text("1 rendering", timeout=10_000)
    expect(desk.cards().locator(".fl-card-status")).to_have_text("1 of 25")


def test_time_left_is_not_given_when_the_connection_is_lost(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    history = [under_way("boat", "running", 90.0)]
    desk.page.route("**/api/v1/renders", lambda route: route.fulfill(json={"renders": history, "next": None}))
    desk.page.route("**/api/v1/events", lambda route: route.abort())
    desk.open()
    expect(desk.page.locator("#fl-queue")).to_have_text("1 rendering", timeout=10_000)
    expect(desk.cards().locator(".fl-card-status")).to_have_text("1 of 25")


def test_page_stays_where_it_is_when_a_render_is_accepted_and_followed(desk: Desk) -> None:
    fewer_steps(desk, 4)
    desk.write("a balloon in the sky")
    desk.page.evaluate("scrollTo(0, 0)")
    desk.done(desk.accept())
    follow = desk.page.locator("#fl-follow")
    expect(follow.locator("#fl-follow-text")).to_have_text(LIKE_ITS_PREVIEW)
    assert desk.page.evaluate("scrollY") == 0
    follow.get_by_role("button", name="Open").click()
    desk.page.keyboard.press("Escape")
    expect(follow.get_by_role("button", name="Open")).to_be_focused()
