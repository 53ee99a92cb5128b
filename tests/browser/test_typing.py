"""The picture shown is of what stands in the box, however it got there."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import WebSocketRoute, expect

from tests.browser.conftest import Desk

WATCH_WORD = """() => {
  const word = document.querySelector('#fl-word');
  window.wordVanished = false;
  new MutationObserver(() => { window.wordVanished ||= word.hidden; }).observe(word, { attributes: true });
}"""

GREY_PIXEL_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6368000000820081"
    "77cd72b60000000049454e44ae426082"
)


def frame(rev: int) -> bytes:
    head = {"rev": rev, "preview_id": f"p{rev}", "seed": 1, "width": 8, "height": 8, "steps": 1, "format": "png"}
    header = json.dumps(head).encode()
    return len(header).to_bytes(4, "big") + header + GREY_PIXEL_PNG


def test_page_invites_and_asks_nobody_else_when_opened(desk: Desk) -> None:
    assert desk.stage["state"] == "empty"
    desk.page.get_by_role("button", name="a penguin in the snow").click()
    desk.shows("a penguin in the snow")
    assert desk.hosts - {""} == {urlsplit(desk.url).netloc}  # "" is data: and blob:
    assert desk.errors == []


def test_picture_is_of_the_final_text_when_twenty_characters_come_fast(desk: Desk) -> None:
    desk.box.fill("")
    desk.box.press_sequentially("a fox in the forest!", delay=30)
    assert desk.stage["behind"] == "true"
    shown = desk.shows("a fox in the forest!")
    assert shown["previewId"]


def test_picture_follows_when_text_is_pasted(desk: Desk) -> None:
    desk.write("a dog")
    desk.page.evaluate("navigator.clipboard.writeText(' on the snow')")
    desk.box.press("End")
    desk.page.keyboard.press("Control+V")
    desk.shows("a dog on the snow")


def test_picture_follows_when_characters_are_deleted_and_undone(desk: Desk) -> None:
    desk.write("a redd apple")
    desk.box.press("Home")
    for _ in range(4):
        desk.page.keyboard.press("ArrowRight")
    desk.page.keyboard.press("Delete")
    desk.shows("a red apple")
    desk.page.keyboard.press("Control+Z")
    desk.shows("a redd apple")


def test_picture_follows_when_text_comes_from_an_input_method(desk: Desk) -> None:
    desk.write("a ")
    desk.box.press("End")
    session = desk.context.new_cdp_session(desk.page)
    session.send("Input.imeSetComposition", {"text": "ne", "selectionStart": 2, "selectionEnd": 2})
    session.send("Input.insertText", {"text": "猫"})
    desk.shows("a 猫")


def test_picture_follows_when_a_script_changes_the_box(desk: Desk) -> None:
    desk.page.eval_on_selector("#fl-prompt", "box => { box.value = 'a rocket in space'; }")
    desk.shows("a rocket in space")


def test_stage_is_empty_when_the_box_is_cleared(desk: Desk) -> None:
    desk.write("a pear")
    desk.page.get_by_role("button", name="Clear the prompt").click()
    expect(desk.page.locator("#fl-stage")).to_have_attribute("data-state", "empty")
    assert desk.stage["behind"] == "false"
    expect(desk.page.locator("#fl-accept")).to_be_disabled()


def test_notice_names_the_bound_when_the_text_is_too_long(desk: Desk) -> None:
    desk.box.fill("x" * 2001)
    expect(desk.page.locator("#fl-notice")).to_contain_text("2000", timeout=10_000)
    assert desk.stage["shownPrompt"] == ""
    desk.write("a cat")
    expect(desk.page.locator("#fl-notice")).to_be_hidden()


def test_older_frame_is_dropped_when_it_comes_late(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    heard: list[int] = []

    def serve(socket: WebSocketRoute) -> None:
        def answer(text: str | bytes) -> None:
            heard.append(json.loads(text)["rev"])
            if len(heard) == 2:  # the second text is answered first, then the first, late
                socket.send(frame(heard[1]))
                socket.send(frame(heard[0]))

        socket.on_message(answer)

    desk.page.route_web_socket("**/api/v1/live", serve)
    desk.open()
    desk.box.fill("first")
    desk.page.wait_for_timeout(150)
    desk.box.fill("second")
    shown = desk.shows("second")
    desk.page.wait_for_timeout(200)
    assert desk.stage["rev"] == shown["rev"] == str(heard[1])


def test_newest_text_is_sent_again_when_the_connection_comes_back(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    opened: list[WebSocketRoute] = []

    def serve(socket: WebSocketRoute) -> None:
        opened.append(socket)

        def answer(text: str | bytes) -> None:
            if len(opened) == 1:
                socket.close(code=1012)  # the server restarts and never answers
            else:
                socket.send(frame(json.loads(text)["rev"]))

        socket.on_message(answer)

    desk.page.route_web_socket("**/api/v1/live", serve)
    desk.open()
    desk.box.fill("a boat")
    desk.shows("a boat")
    assert len(opened) == 2


def test_word_about_warming_up_stays_when_the_socket_reconnects(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    opened: list[WebSocketRoute] = []
    heard: list[str | bytes] = []

    def serve(socket: WebSocketRoute) -> None:
        opened.append(socket)
        socket.on_message(lambda text: heard.append(text))  # and never answers

    desk.page.route_web_socket("**/api/v1/live", serve)
    loading = {"ready": False, "reason": "warming up: the model is loading"}
    desk.page.route("**/readyz", lambda route: route.fulfill(status=503, json=loading))
    desk.open()
    desk.box.fill("a boat")
    expect(desk.page.locator("#fl-word")).to_contain_text("warming up", timeout=10_000)
    desk.page.evaluate(WATCH_WORD)
    sent = len(heard)
    opened[-1].close(code=1012)
    for _ in range(100):
        if len(heard) > sent:  # the text was sent again over a new socket
            break
        desk.page.wait_for_timeout(50)
    assert len(opened) == 2
    desk.page.wait_for_timeout(200)
    assert desk.page.evaluate("window.wordVanished") is False


def test_accept_gives_up_with_the_reason_when_there_is_no_worker(new_desk: Callable[..., Desk]) -> None:
    desk = new_desk()
    reason = "waiting for a worker: there is none for preview"
    error = {"code": "unavailable", "message": reason}

    def serve(socket: WebSocketRoute) -> None:
        def answer(text: str | bytes) -> None:
            rev = json.loads(text)["rev"]
            if rev > 2:  # not before somebody has pressed Accept
                socket.send(json.dumps({"rev": rev, "error": error}))

        socket.on_message(answer)

    desk.page.route_web_socket("**/api/v1/live", serve)
    desk.page.route("**/readyz", lambda route: route.fulfill(status=503, json={"ready": False, "reason": reason}))
    desk.open()
    desk.box.fill("a boat")
    expect(desk.page.locator("#fl-word")).to_have_text(reason, timeout=10_000)
    desk.page.locator("#fl-accept").click()
    expect(desk.page.locator("#fl-accept-label")).to_have_text("Accepting…")
    desk.box.fill("a boat on the sea")
    expect(desk.page.locator("#fl-said")).to_have_text(f"Not accepted: {reason}")
    expect(desk.page.locator("#fl-accept-label")).to_have_text("Accept")
    expect(desk.page.locator("#fl-notice")).to_contain_text("No picture yet")
