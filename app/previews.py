"""One preview over HTTP: the live path with a session that asks once."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from app.asking import REPOSTS, Asker, hopeless, no_answer
from app.bodies import PreviewBody
from app.context import Context
from app.standing import Standing
from app.wants import Here, Owner
from core.errors import BlockedPrompt, FirstlightError, InvalidInput, NonFinite, Unavailable
from core.wire import PreviewRequest

router = APIRouter()

Answer = tuple[dict[str, Any], bytes]


@router.post("/api/v1/previews")
async def make_preview(body: PreviewBody, context: Here, owner: Owner) -> dict[str, Any]:
    """The picture of one text, as base64 in JSON."""
    return await preview_once(context, owner, body)


async def preview_once(context: Context, owner: str, body: PreviewBody) -> dict[str, Any]:
    """Raises: InvalidInput, BlockedPrompt, Unavailable when no worker answers."""
    recipe = context.recipes.for_preview(body)
    asker = Asker(
        context.mailbox, uuid.uuid4().hex, owner, context.router.reply_to, context.clock, context.answer_timeout_s
    )
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def deliver(header: dict[str, Any], payload: bytes) -> None:
        if not answered.done():
            answered.set_result((header, payload))

    context.router.listen(asker.session, deliver)
    try:
        header, payload = await _answer(asker, asker.request(0, recipe), answered, context.previewers)
    finally:
        context.router.forget(asker.session)
    return {**as_json(header, payload), "recipe": recipe.as_dict()}


async def _answer(
    asker: Asker, request: PreviewRequest, answered: asyncio.Future[Answer], previewers: Callable[[], Standing]
) -> Answer:
    try:
        for _ in range(1 + REPOSTS):
            await asker.post(request)
            done, _waiting = await asyncio.wait([answered], timeout=asker.timeout_s)
            if done:
                return answered.result()
            found = await asyncio.to_thread(previewers)
            if hopeless(found):
                break
    finally:
        await asker.close()
    raise no_answer(found)


def as_json(header: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Raises: the failure that the preview pool reports."""
    if "blocked" in header:
        raise BlockedPrompt(header["blocked"]["message"])
    if "error" in header:
        raise _failure(header["error"])
    picture = base64.b64encode(payload).decode("ascii")
    return {**{k: v for k, v in header.items() if k != "rev"}, "image_b64": picture}


def _failure(error: dict[str, Any]) -> FirstlightError:
    if error.get("code") == Unavailable.code:
        return Unavailable(error["message"])
    if error.get("code") == InvalidInput.code:
        return InvalidInput(error["field"], error["message"].removeprefix(f"{error['field']}: "))
    if error.get("code") == NonFinite.code and "field" in error:
        return NonFinite(error["message"], field=error["field"])
    return FirstlightError(error["message"])
