"""A render's record as the outside sees it."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from app.context import Context
from core.errors import NotFound
from core.render import State
from final_engine.keys import preview_object
from shared_cache.renders import Record

STABLE_URL_S = 300  # a picture keeps its URL that long, so that browsers cache it


def view(context: Context, record: Record, root_path: str) -> dict[str, Any]:
    """JSON of one render; pictures as signed URLs."""
    return {
        "id": record.id,
        "state": record.state.value,
        "progress": {"step": record.step, "steps": record.steps},
        "position": place(context, record),
        "waits_for": _waits_for(context, record),
        "predicted_s": record.predicted_s,
        "predicted_gpu_s": record.predicted_gpu_s,
        "timings_ms": record.timings_ms,
        "batch_sizes": record.batch_sizes,
        "recipe": record.recipe.as_dict(),
        "handoff": record.handoff,
        "n": record.n,
        "preview_id": record.preview_id,
        "images": [_image(context, image, root_path) for image in record.images],
        "preview_url": _preview_url(context, record, root_path),
        "error": record.error,
        "created_s": record.created_s,
    }


def place(context: Context, record: Record) -> int | None:
    """1 is next; None when it does not wait any more."""
    ahead = context.renders.position(record.id) if record.state is State.QUEUED else None
    return None if ahead is None else ahead + 1


def _waits_for(context: Context, record: Record) -> str | None:
    """The model that a render waits for because no worker that lives has it."""
    if record.state is not State.QUEUED:
        return None
    model = record.recipe.model
    own = model == context.profile.model
    count = context.workers.count() if own else context.registry.ready_counts(model)["final"]
    return None if count else model


def _preview_url(context: Context, record: Record, root_path: str) -> str | None:
    if record.preview_id is None:
        return None
    if record.state is State.DONE and record.handoff.get("similarity") is not None:  # published beside the picture
        return signed_url(context, preview_object(record.id), root_path)
    return f"{root_path}/api/v1/renders/{record.id}/preview"


def _image(context: Context, image: dict[str, Any], root_path: str) -> dict[str, Any]:
    urls = {
        "url": signed_url(context, image["key"], root_path),
        "download_url": signed_url(context, image["key"], root_path, download=True),
    }
    return {**urls, **{k: v for k, v in image.items() if k != "key"}}


def signed_url(context: Context, key: str, root_path: str, download: bool = False) -> str:
    """In S3, or under public_url if that is set, else a path on this host; works for url_ttl_s at least."""
    now_s = int(time.time()) // STABLE_URL_S * STABLE_URL_S
    url = context.objects.sign(key, context.settings.url_ttl_s + STABLE_URL_S, now_s, download)
    return url if "://" in url else root_path + url


def owned(context: Context, owner: str, render_id: str) -> Record:
    """Raises: NotFound, also for another owner's render, so that ids tell nothing."""
    record = context.renders.get(render_id)
    if record is None or record.owner != owner:
        raise NotFound("no such render")
    return record


def next_page(records: list[Record], limit: int) -> str | None:
    """Query string of the page after this one."""
    if len(records) < limit:
        return None
    return urlencode({"limit": limit, "before_s": repr(records[-1].created_s)})
