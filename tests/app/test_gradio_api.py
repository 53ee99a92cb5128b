"""/preview and /render for gradio_client users."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from core.render import State
from tests.app.conftest import JPEG, Web


@pytest.fixture(scope="module")
def gradio(web: Web) -> Iterator[Any]:
    client = Client(web.url, verbose=False)
    yield client
    client.close()


def test_preview_answers_as_http_does(web: Web, gradio: Any, aside: ThreadPoolExecutor) -> None:
    waiting = aside.submit(gradio.predict, "a cat", seed=5, api_name="/preview")
    request = web.pool.take()
    assert request.recipe.seed == 5 and request.owner == "local"
    web.pool.answer(request)
    made = waiting.result(10)
    assert base64.b64decode(made["image_b64"]) == JPEG and made["seed"] == 5


def test_render_yields_records_until_the_end(web: Web, gradio: Any) -> None:
    job = gradio.submit(prompt="a cat", seed=5, steps=4, api_name="/render")
    while not job.outputs():
        assert not job.done(), job.result()
    render_id = job.outputs()[0]["id"]
    record = web.context.renders.claim(render_id, 3)
    assert record is not None and record.recipe.steps == 4
    image = {"key": f"renders/{render_id}/0.png", "sha256": "0" * 64, "seed": 5, "width": 128, "height": 128}
    web.context.renders.finish(render_id, record.attempt, State.DONE, images=[image])
    done = job.result(10)
    assert done["state"] == "done"
    assert done["images"][0]["url"].startswith(f"{web.url}/objects/renders/{render_id}/0.png?")


@pytest.mark.parametrize(("api_name", "fields"), [("/preview", {"width": 3}), ("/render", {"sampler": "x"})])
def test_bad_input_is_told_with_its_field(gradio: Any, api_name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(AppError, match=next(iter(fields))):
        gradio.predict(prompt="a cat", api_name=api_name, **fields)
