"""Two versions of the model in one fleet, each with a web process and workers of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sampling.profile import load_profile
from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.conftest import BUNDLE, RunningApp


def another_version(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder)
    profile = folder / "storybook.json"
    profile.write_text(json.dumps({**json.loads(profile.read_text()), "version": "another"}))
    return folder


@pytest.fixture
def apps(tmp_path: Path, bundle: Path, redis_url: str) -> Iterator[tuple[RunningApp, RunningApp]]:
    """The second one is not started."""
    model = another_version(bundle, tmp_path / "model")
    first = RunningApp(tmp_path / "first", REDIS_URL=redis_url)
    second = RunningApp(tmp_path / "second", REDIS_URL=redis_url, FIRSTLIGHT_MODEL=str(model))
    first.start()
    yield first, second
    for app in (second, first):
        if app.runs:
            app.stop()


def test_work_waits_for_workers_of_its_own_version(
    apps: tuple[RunningApp, RunningApp], tmp_path: Path, redis_url: str
) -> None:
    first, second = apps
    lonely = RunningApp(
        tmp_path / "lonely", REDIS_URL=redis_url, FIRSTLIGHT_MODEL=str(tmp_path / "model"), FIRSTLIGHT_ROLES=""
    )
    lonely.start(ready=False)
    with httpx.Client(base_url=lonely.url, timeout=TIMEOUT_S) as http:
        assert http.get("/readyz").json()["workers"] == {"preview": 0, "final": 0, "decode": 0, "finish": 1}
        waits = a_render(http, prompt="a cat on the beach", steps=4)
    with httpx.Client(base_url=first.url, timeout=TIMEOUT_S) as http:
        mine = a_render(http, prompt="a cat on the beach", steps=4)
        done = ended(http, mine)  # it was asked for later, by which the other would have been taken
        assert (done["state"], done["recipe"]["model_version"]) == ("done", load_profile(BUNDLE).version)
        record = http.get(f"/api/v1/renders/{waits}").json()
        assert (record["state"], record["waits_for"]) == ("queued", "storybook@another")
    assert lonely.stop() == 0
    second.start()
    with httpx.Client(base_url=second.url, timeout=TIMEOUT_S) as http:
        done = ended(http, waits)
        assert (done["state"], done["recipe"]["model_version"]) == ("done", "another")
        preview = a_preview(http)
        followed = ended(http, a_render(http, preview_id=preview["preview_id"], steps=4))
        assert followed["state"] == "done" and followed["handoff"]["similarity"] > 0
    with httpx.Client(base_url=first.url, timeout=TIMEOUT_S) as http:
        a_preview(http)
