"""Renders: ask for one, look, cancel, list."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from app.bodies import RenderBody
from app.context import Context
from app.records import next_page, owned, place, view
from app.wants import Here, Owner, saying
from core.errors import FirstlightError, InvalidInput, NotFound, Overloaded, OverQuota
from core.recipe import Recipe
from core.render import State
from core.validate import check_int, check_number
from final_engine.door import RenderWish
from shared_cache.renders import Record

router = APIRouter(prefix="/api/v1/renders")

DAY_S = 24 * 3600.0
MAX_PAGE = 100
_BEFORE = "must be a time in seconds above 0; a page's next has the right one"
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,200}")


async def render_id_of(render_id: str) -> str:
    """Text that cannot be an id is unknown like any other, and never reaches a key."""
    return render_id if ID_PATTERN.fullmatch(render_id) else "none"


RenderId = Annotated[str, Depends(render_id_of)]


@router.post("", status_code=202)
def ask(
    body: RenderBody, context: Here, owner: Owner, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, Any]:
    """Queues a render of a recipe, or of an accepted preview."""
    record = submit(context, owner, body, idempotency_key)
    return {
        "id": record.id,
        "state": record.state.value,
        "predicted_s": record.predicted_s,
        "position": place(context, record),
        "seed": record.recipe.seed,
    }


def submit(context: Context, owner: str, body: RenderBody, idempotency_key: str | None = None) -> Record:
    """Raises: InvalidInput, BlockedPrompt, Conflict, Overloaded, OverQuota; each is counted by its reason."""
    try:
        return _submit(context, owner, body, idempotency_key)
    except FirstlightError as error:
        context.metrics.rejected(_reason(error, body.deadline_s))
        raise


def _reason(error: FirstlightError, deadline_s: float | None) -> str:
    """The error's code, but for one of which Overloaded has no word: there was room, and too little time."""
    if not isinstance(error, Overloaded) or isinstance(error, OverQuota) or deadline_s is None:
        return error.code
    return "deadline" if error.predicted_s > deadline_s else error.code


def _submit(context: Context, owner: str, body: RenderBody, idempotency_key: str | None) -> Record:
    idempotency = _idempotency(body, idempotency_key)
    if idempotency is not None and (earlier := context.renders.find(owner, idempotency)) is not None:
        return earlier
    limits = context.profile.limits
    n = 1 if body.n is None else body.n
    check_int(n, "n", 1, limits.max_images)
    if body.deadline_s is not None:
        check_number(body.deadline_s, "deadline_s", 0.0, DAY_S)
    recipe = _recipe(context, owner, body)
    if recipe.seed + n - 1 > limits.max_seed:
        raise InvalidInput("seed", f"must leave room for {n} images; at most {limits.max_seed - n + 1}")
    wish = RenderWish(recipe, n=n, preview_id=body.preview_id, deadline_s=body.deadline_s)
    return context.admission.submit(owner, wish, idempotency)


def _recipe(context: Context, owner: str, body: RenderBody) -> Recipe:
    if body.preview_id is None:
        return context.recipes.for_render(body)
    if not ID_PATTERN.fullmatch(body.preview_id):
        raise InvalidInput("preview_id", "is not the id of a preview")
    stored = context.admission.check_preview(owner, body.preview_id)
    return context.recipes.following(stored.recipe, body)


def _idempotency(body: RenderBody, key: str | None) -> tuple[str, str] | None:
    if key is None:
        return None
    if not _KEY_PATTERN.fullmatch(key):
        raise InvalidInput("Idempotency-Key", "must be 1…200 visible ASCII characters")
    fields = json.dumps(body.model_dump(exclude_unset=True), sort_keys=True)  # ASCII, whatever the text holds
    return key, hashlib.sha256(fields.encode()).hexdigest()


@router.get("")
def history(
    request: Request,
    context: Here,
    owner: Owner,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE), saying(f"must be a whole number in 1…{MAX_PAGE}")] = 30,
    before_s: Annotated[float | None, Query(gt=0, allow_inf_nan=False), saying(_BEFORE)] = None,
) -> dict[str, Any]:
    """The owner's renders, newest first; next is the query of the following page."""
    records = context.renders.history(owner, limit, before_s)
    root_path = request.scope.get("root_path", "")
    page = next_page(records, limit)
    return {
        "renders": [view(context, record, root_path) for record in records],
        "next": f"{root_path}/api/v1/renders?{page}" if page else None,
    }


@router.get("/{render_id}")
def look(request: Request, render_id: RenderId, context: Here, owner: Owner) -> dict[str, Any]:
    """State, progress, recipe, pictures."""
    return view(context, owned(context, owner, render_id), request.scope.get("root_path", ""))


@router.get("/{render_id}/preview")
def accepted_preview(render_id: RenderId, context: Here, owner: Owner) -> Response:
    """The preview that the render follows, while it is on its way; then the record has a signed URL."""
    owned(context, owner, render_id)
    kept = context.kept.get(render_id)
    if kept is None:
        raise NotFound("this render follows no preview, or it was too long ago")
    return Response(kept.jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.delete("/{render_id}")
def cancel(request: Request, render_id: RenderId, context: Here, owner: Owner) -> dict[str, Any]:
    """Cancels; what has ended stays as it is, and asking twice is no error."""
    owned(context, owner, render_id)
    record, ended = context.renders.cancel(render_id)
    if ended:
        context.metrics.ended(State.CANCELLED)
    return view(context, record, request.scope.get("root_path", ""))
