"""Seed, size, styles, steps, variations; keyboard, phone, reload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PREVIEW_TIMEOUT_MS, Desk

LARGEST_SEED = 2**53 - 1


def await_seed(desk: Desk, seed: str) -> None:
    """Until the picture shown is of this seed."""
    shown = desk.page.locator(f"#fl-stage[data-behind=false][data-seed='{seed}']")
    expect(shown).to_be_visible(timeout=PREVIEW_TIMEOUT_MS)


def test_largest_seed_is_used_exactly_and_one_more_is_refused(desk: Desk) -> None:
    desk.write("a cat on the beach")
    seed = desk.page.get_by_label("Seed", exact=True)
    seed.fill(str(LARGEST_SEED))
    await_seed(desk, str(LARGEST_SEED))
    for wrong in (str(LARGEST_SEED + 1), "1798406481619217041", "-1", "1.5"):
        seed.fill(wrong)
        expect(desk.page.locator("#fl-seed-error")).to_contain_text(str(LARGEST_SEED))
        assert desk.stage["seed"] == str(LARGEST_SEED)
    seed.press("Escape")
    expect(seed).to_have_value(str(LARGEST_SEED))


def test_seed_is_shuffled_and_goes_back(desk: Desk) -> None:
    desk.write("a cat on the beach")
    desk.page.get_by_label("Seed", exact=True).fill("7")
    await_seed(desk, "7")
    desk.box.focus()
    desk.page.keyboard.press("Alt+S")
    shuffled = desk.page.locator("#fl-seed").input_value()
    assert shuffled != "7"
    await_seed(desk, shuffled)
    desk.page.get_by_role("button", name="Back").click()
    await_seed(desk, "7")


def test_preview_follows_when_size_style_weight_and_steps_change(desk: Desk) -> None:
    desk.write("a cat on the beach")
    before = int(desk.stage["rev"])
    desk.page.get_by_label("144 × 112").check()
    expect(desk.page.locator("#fl-facts")).to_contain_text("144 × 112", timeout=PREVIEW_TIMEOUT_MS)
    desk.page.locator(".fl-chip[data-style]").first.get_by_role("button").first.click()
    chip = desk.page.locator(".fl-chip[data-on=true]")
    chip.get_by_role("slider").press("ArrowLeft")
    desk.page.locator("#fl-more summary").click()
    desk.page.get_by_label("Preview steps").press("Home")
    expect(desk.page.locator("#fl-facts")).to_contain_text("1 step", timeout=PREVIEW_TIMEOUT_MS)
    desk.shows("a cat on the beach")
    assert int(desk.stage["rev"]) >= before + 4
    desk.page.get_by_role("button", name="none", exact=True).click()
    expect(chip).to_have_count(0)


def test_stage_keeps_its_size_when_the_shape_changes(desk: Desk) -> None:
    desk.write("a cat on the beach")
    before = desk.page.locator("#fl-stage").bounding_box()
    desk.page.get_by_label("104 × 152").check()
    expect(desk.page.locator("#fl-facts")).to_contain_text("104 × 152", timeout=PREVIEW_TIMEOUT_MS)
    assert desk.page.locator("#fl-stage").bounding_box() == before
    desk.page.get_by_label("128 × 128").check()


def test_picked_variation_becomes_the_seed(desk: Desk) -> None:
    desk.write("a red apple on the snow")
    hint = desk.page.locator("#fl-vary-hint")
    expect(hint).to_be_visible()
    expect(desk.page.locator("#fl-four")).to_be_hidden()
    desk.page.get_by_role("button", name="Four variations").click()
    expect(hint).to_be_hidden()
    slots = desk.page.locator("#fl-four button")
    for index in range(4):
        expect(slots.nth(index)).to_be_enabled(timeout=PREVIEW_TIMEOUT_MS)
    seeds = [slots.nth(index).get_attribute("data-seed") or "" for index in range(4)]
    assert len(set(seeds)) == 4
    slots.nth(2).click()
    await_seed(desk, seeds[2])
    expect(desk.page.get_by_role("button", name="Keep this seed")).to_have_attribute("aria-pressed", "true")


def test_settings_are_kept_when_the_page_is_reloaded(desk: Desk) -> None:
    desk.write("a pear on a pink background")
    desk.page.get_by_label("Seed", exact=True).fill("42")
    desk.page.get_by_label("152 × 104").check()
    desk.page.get_by_label("fresh").check()
    await_seed(desk, "42")
    desk.open()
    expect(desk.box).to_have_value("a pear on a pink background")
    expect(desk.page.get_by_label("152 × 104")).to_be_checked()
    expect(desk.page.get_by_label("fresh")).to_be_checked()
    assert desk.shows("a pear on a pink background")["seed"] == "42"


def test_negative_prompt_says_when_it_is_ignored(desk: Desk) -> None:
    more = desk.page.locator("#fl-more")
    if not more.evaluate("details => details.open"):
        more.locator("summary").click()
    hint = desk.page.locator("#fl-negative-hint")
    expect(hint).to_contain_text("final only")
    guidance = desk.page.get_by_label("Guidance")
    guidance.fill("1")
    expect(hint).to_contain_text("Ignored now")
    guidance.fill("-3")
    expect(desk.page.locator("#fl-guidance-hint")).to_contain_text("from 0 to 20")
    guidance.fill("")


def test_keyboard_alone_reaches_every_control_in_reading_order(desk: Desk) -> None:
    desk.write("a cat")
    desk.box.focus()
    focused = "(({id, name, className}) => id || name || className)(document.activeElement)"
    seen: list[str] = []
    for _ in range(30):
        desk.page.keyboard.press("Tab")
        seen.append(desk.page.evaluate(focused))
    wanted = ["fl-clear", "fl-chip-name", "fl-size", "fl-seed", "fl-lock", "fl-shuffle"]
    wanted += ["fl-accept", "fl-handoff", "fl-vary-go"]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places)
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    desk.page.locator("#fl-accept").focus()
    assert desk.page.evaluate(ring) == "solid"
    desk.page.locator("#fl-seed").focus()
    seed_ring = "getComputedStyle(document.querySelector('.fl-seedbox')).outline"
    assert "solid 2px" in desk.page.evaluate(seed_ring)


def test_page_fits_a_phone_when_it_is_360_pixels_wide(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).open()
    desk.write("a cat on the beach")
    desk.page.locator(".fl-chip[data-style]").first.get_by_role("button").first.tap()
    desk.page.locator("#fl-more summary").tap()
    assert desk.page.evaluate("document.documentElement.scrollWidth") <= 360
    accept = desk.page.locator("#fl-accept").bounding_box()
    assert accept is not None and accept["y"] + accept["height"] <= 740


def test_every_tool_has_its_label_when_the_page_is_as_wide_as_a_phone(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).open()
    for tool in ("Styles", "Size", "Seed"):
        expect(desk.page.locator("legend").get_by_text(tool, exact=True)).to_be_visible()
    hint = desk.page.locator("#fl-handoff-hint").bounding_box()
    rail = desk.page.locator(".fl-rail").bounding_box()
    assert hint is not None and rail is not None and rail["y"] - hint["y"] - hint["height"] < 30


def test_colours_follow_the_toggle(desk: Desk) -> None:
    toggle = desk.page.locator("#fl-theme")
    background = "getComputedStyle(document.body).backgroundColor"
    seen = set()
    for _ in range(3):
        toggle.click()
        seen.add(desk.page.evaluate(background))
    assert len(seen) == 2
    expect(toggle).to_have_attribute("aria-label", "Colours: automatic")


TOOLS = """() => {
  const box = (selector) => document.querySelector(selector).getBoundingClientRect();
  const covers = (a, b) => a.right > b.left + 0.5 && b.right > a.left + 0.5 && a.bottom > b.top && b.bottom > a.top;
  const words = (legend) => {
    const range = document.createRange();
    range.selectNodeContents(legend);
    return range.getBoundingClientRect();
  };
  const wrong = [];
  const parts = ['.fl-sizes', '.fl-seed', '#fl-styles'];
  for (const part of parts) if (box(part).right > box('.fl-write').right + 5) wrong.push(`${part} leaves the page`);
  for (const [a, b] of [[0, 1], [0, 2], [1, 2]]) {
    if (covers(box(parts[a]), box(parts[b]))) wrong.push(`${parts[a]} covers ${parts[b]}`);
  }
  for (const legend of document.querySelectorAll('.fl-tools legend')) {
    const own = legend.parentElement.querySelector('div').getBoundingClientRect();
    if (words(legend).right > own.left + 4.5) wrong.push(`${legend.textContent} is covered`);
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page scrolls sideways');
  return wrong;
}"""


CUT = """() => {
  const list = document.querySelector('#fl-styles');
  const shown = list.getBoundingClientRect();
  const wrong = [];
  for (let to = 0; to < list.scrollHeight; to += 25) {
    list.scrollTo(0, to);
    const tops = [...list.children].map((chip) => chip.getBoundingClientRect().top - shown.top);
    if (!tops.some((top) => Math.abs(top - 4) < 1)) wrong.push(`a row is cut above when scrolled to ${to}`);
  }
  const faded = list.scrollHeight > list.clientHeight ? 15 : 3;
  if (list.lastChild.getBoundingClientRect().bottom > shown.bottom - faded) wrong.push('the last row is cut');
  list.scrollTo(0, 0);
  return wrong;
}"""


def some_styles(count: int) -> list[dict[str, Any]]:
    facts = {"weight": 1.0, "trigger_words": [], "licence": "unknown", "description": "", "sha256": ""}
    return [{"id": f"style-{i}", "name": f"Woodblock {i}"[: 5 + i % 9], **facts} for i in range(count)]


@pytest.mark.parametrize("count", [0, 4, 5, 9, 14, 40])
def test_row_of_tools_holds_any_number_of_styles(new_desk: Callable[..., Desk], count: int) -> None:
    desk = new_desk(viewport={"width": 1280, "height": 900})
    body = {"styles": some_styles(count), "problems": []}
    desk.page.route("**/api/v1/styles", lambda route: route.fulfill(json=body))
    desk.open()
    chips = desk.page.locator(".fl-chip[data-style]")
    expect(chips).to_have_count(count)
    stage = desk.page.locator("#fl-stage").bounding_box()
    for i in {0, count // 2, count - 1} if count else ():
        chips.nth(i).get_by_role("button").first.click()
    assert desk.page.locator("#fl-stage").bounding_box() == stage  # choosing moves nothing below
    assert desk.page.evaluate(CUT) == []
    for width in (1024, 1081, 1280, 1440, 1920):
        desk.page.set_viewport_size({"width": width, "height": 900})
        assert desk.page.evaluate(TOOLS) == [], width
