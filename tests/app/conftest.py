"""A web process on a real port with a real Valkey and no worker; tests play the preview pool themselves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from app.context import Context
from app.gateway import create_app
from core.recipe import Recipe
from core.settings import Settings, load_settings
from core.wire import PreviewRequest, pack_frame
from shared_cache.embedded import EmbeddedRedis
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.previews import Previews, StoredPreview

ANSWER_TIMEOUT_S = 0.6
JPEG = b"\xff\xd8 not really a picture"


@dataclass
class Pool:
    """The preview pool's end of the mailbox."""

    mailbox: Mailbox
    replies: Replies

    def take(self, timeout_s: float = 5.0) -> PreviewRequest:
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            if found := self.mailbox.take(1):
                return found[0]
            time.sleep(0.01)
        raise TimeoutError("nobody asked for a preview")

    def answer(self, request: PreviewRequest, payload: bytes = JPEG, **fields: Any) -> None:
        recipe = request.recipe
        header = {
            "session": request.session,
            "rev": request.rev,
            "preview_id": request.preview_id,
            "seed": recipe.seed,
            "steps": recipe.steps,
            "width": recipe.width,
            "height": recipe.height,
            "format": "jpeg",
            "timings_ms": {"total": 1.0},
        }
        self.replies.push(request.reply_to, pack_frame({**header, **fields}, payload))

    def refuse(self, request: PreviewRequest, **fields: Any) -> None:
        self.replies.push(request.reply_to, pack_frame({"session": request.session, "rev": request.rev, **fields}))


@dataclass
class Web:
    """The running web process."""

    url: str
    context: Context
    pool: Pool

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws") + "/api/v1/live"

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=10, trust_env=False)

    def stored_preview(self, owner: str, **changes: Any) -> str:
        """Puts a finished preview of that owner into the store; its id."""
        recipe = replace(self.recipe(), **changes)
        preview_id = f"{time.monotonic_ns():x}"
        Previews(self.context.redis).put(preview_id, StoredPreview(owner, recipe, b"latents", JPEG))
        return preview_id

    @property
    def model(self) -> dict[str, str]:
        """What a worker announces that can work for this server."""
        return {"model": self.context.profile.id, "version": self.context.profile.version}

    def recipe(self) -> Recipe:
        profile = self.context.profile
        return Recipe(
            prompt="a cat on the beach",
            negative_prompt="",
            seed=7,
            width=128,
            height=128,
            steps=profile.preview.steps,
            guidance_scale=profile.preview.guidance_scale,
            sampler=profile.preview.sampler,
            styles=(),
            model_id=profile.id,
            model_version=profile.version,
        )


@pytest.fixture(scope="session")
def web_settings(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("web")
    embedded = EmbeddedRedis(folder)
    yield load_settings(data_dir=folder, model=str(bundle), redis_url=embedded.start(), lane_capacity=1000)
    embedded.stop()


@pytest.fixture(scope="session")
def web(web_settings: Settings) -> Iterator[Web]:
    app = create_app(web_settings, ANSWER_TIMEOUT_S)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    context: Context = app.state.context
    pool = Pool(context.mailbox, Replies(context.redis))
    yield Web(f"http://127.0.0.1:{listener.getsockname()[1]}", context, pool)
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(web: Web) -> Iterator[httpx.Client]:
    """The shared owner."""
    with web.client() as client:
        yield client


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """For requests that wait while the test plays the pool."""
    with ThreadPoolExecutor(2) as executor:
        yield executor
