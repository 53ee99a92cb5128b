"""A real browser before the real app; Desk is a person at the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

DESKTOP = {"width": 1280, "height": 900}
PREVIEW_TIMEOUT_MS = 20_000
RENDER_TIMEOUT_MS = 60_000

SHOWS = """prompt => {
  const stage = document.querySelector('#fl-stage').dataset;
  return stage.state === 'picture' && stage.behind === 'false' && stage.shownPrompt === prompt;
}"""


class Desk:
    """One person's page, opened with that person's own cookies."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.url = url

    def open(self) -> Desk:
        self.page.goto(self.url)
        self.page.wait_for_selector("#firstlight[data-ready=true]")
        return self

    @property
    def box(self) -> Any:
        return self.page.locator("#fl-prompt")

    @property
    def stage(self) -> dict[str, str]:
        found: dict[str, str] = self.page.eval_on_selector("#fl-stage", "stage => ({...stage.dataset})")
        return found

    def shows(self, prompt: str) -> dict[str, str]:
        """Waits until the picture shown is of this text and nothing newer is on its way."""
        self.page.wait_for_function(SHOWS, arg=prompt, timeout=PREVIEW_TIMEOUT_MS)
        return self.stage

    def write(self, prompt: str) -> dict[str, str]:
        self.box.fill(prompt)
        return self.shows(prompt)

    def cards(self, state: str = "") -> Any:
        return self.page.locator(f".fl-card[data-state={state}]" if state else ".fl-card")

    def accept(self) -> str:
        """Accepts what stands; returns the id of the new render."""
        before = set(self._ids())
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            "n => document.querySelectorAll('.fl-card').length > n", arg=len(before), timeout=PREVIEW_TIMEOUT_MS
        )
        return (set(self._ids()) - before).pop()

    def done(self, render_id: str) -> Any:
        card = self.page.locator(f".fl-card[data-id='{render_id}']")
        expect(card).to_have_attribute("data-state", "done", timeout=RENDER_TIMEOUT_MS)
        return card

    def _ids(self) -> list[str]:
        ids: list[str] = self.page.eval_on_selector_all(".fl-card", "cards => cards.map(card => card.dataset.id)")
        return ids


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_desk(browser: Browser, app_url: str) -> Iterator[Callable[..., Desk]]:
    """Makes a person: own cookies, own storage."""
    contexts: list[BrowserContext] = []

    def make(**options: Any) -> Desk:
        context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
        contexts.append(context)
        return Desk(context, app_url)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def desk(new_desk: Callable[..., Desk]) -> Desk:
    """One person for all tests of a module; a test begins with what it needs, not with an empty page."""
    return new_desk(permissions=["clipboard-read", "clipboard-write"]).open()
