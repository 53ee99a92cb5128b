"""The two actions as named Gradio endpoints, /preview and /render, for gradio_client users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import gradio as gr
from redis.exceptions import RedisError

from app.bodies import PreviewBody, RenderBody, parse_body
from app.context import Context
from app.errors import queue_away
from app.owners import owner_of
from app.previews import preview_once
from app.proxies import public_root
from app.records import owned, view
from app.renders import submit
from core.errors import FirstlightError
from core.render import TERMINAL

CONCURRENT = 16
LOOK_AGAIN_S = 1.0

Result = TypeVar("Result")


def endpoints(context: Context) -> Callable[[], None]:
    """What adds the endpoints; call it inside the Blocks."""

    def add() -> None:
        about_preview = "A few-step preview: JSON with preview_id, seed and the picture as image_b64."
        about_render = "A full render; yields its record while it runs, with picture URLs at the end."
        limit = {"concurrency_limit": CONCURRENT}
        gr.api(_preview_endpoint(context), api_name="preview", api_description=about_preview, **limit)
        gr.api(_render_endpoint(context), api_name="render", api_description=about_render, **limit)

    return add


def _preview_endpoint(context: Context) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Its parameters are what gradio_client shows."""

    async def preview(
        request: gr.Request,
        prompt: str,
        negative_prompt: str = "",
        seed: int | None = None,
        width: int | None = None,
        height: int | None = None,
        styles: list[dict[str, Any]] | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        fields = {
            "prompt": prompt,
            "negative_prompt": negative_prompt,
            "seed": seed,
            "width": width,
            "height": height,
            "styles": styles or [],
            "steps": steps,
        }
        return await _told(_preview(context, owner_of(request.request), fields))

    return preview


def _render_endpoint(context: Context) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """Its parameters are what gradio_client shows."""

    async def render(
        request: gr.Request,
        prompt: str | None = None,
        preview_id: str | None = None,
        negative_prompt: str | None = None,
        seed: int | None = None,
        width: int | None = None,
        height: int | None = None,
        styles: list[dict[str, Any]] | None = None,
        steps: int | None = None,
        guidance_scale: float | None = None,
        sampler: str | None = None,
        handoff: str | None = None,
        deadline_s: float | None = None,
        n: int = 1,
    ) -> AsyncIterator[dict[str, Any]]:
        fields = {
            "prompt": prompt,
            "preview_id": preview_id,
            "negative_prompt": negative_prompt,
            "seed": seed,
            "width": width,
            "height": height,
            "styles": styles,
            "steps": steps,
            "guidance_scale": guidance_scale,
            "sampler": sampler,
            "handoff": handoff,
            "deadline_s": deadline_s,
            "n": n,
        }
        following = _render(context, owner_of(request.request), fields, public_root(request.request))
        while (seen := await _told(anext(following, None))) is not None:
            yield seen

    return render


async def _told(work: Awaitable[Result]) -> Result:
    """Our failures become sentences that gradio_client shows."""
    try:
        return await work
    except FirstlightError as error:
        raise gr.Error(error.message, print_exception=False) from None
    except RedisError as error:
        raise gr.Error(queue_away(error).message, print_exception=False) from None


async def _preview(context: Context, owner: str, fields: dict[str, Any]) -> dict[str, Any]:
    return await preview_once(context, owner, parse_body(PreviewBody, fields))


async def _render(context: Context, owner: str, fields: dict[str, Any], root: str) -> AsyncIterator[dict[str, Any]]:
    """The record at every change until the render ends; stopping to listen does not cancel it."""
    record = await asyncio.to_thread(submit, context, owner, parse_body(RenderBody, fields))
    with context.pulses.follow(record.id) as pulse:
        while True:
            pulse.clear()
            record = await asyncio.to_thread(owned, context, owner, record.id)
            yield await asyncio.to_thread(view, context, record, root)
            if record.state in TERMINAL:
                return
            try:
                await asyncio.wait_for(pulse.wait(), LOOK_AGAIN_S)
            except TimeoutError:
                continue
