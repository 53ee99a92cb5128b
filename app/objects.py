"""Pictures by signed URL."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse

from app.wants import Here
from shared_cache.objects import CONTENT_TYPES

router = APIRouter()


@router.get("/objects/{key:path}")
@router.head("/objects/{key:path}", include_in_schema=False)
def picture(
    key: str,
    context: Here,
    expires: Annotated[int, Query(ge=0, le=2**40)],
    signature: Annotated[str, Query(max_length=128, pattern="^[A-Za-z0-9_=-]+$")],
) -> FileResponse:
    """The bytes, if the signature is ours and has not expired."""
    now_s = time.time()
    context.objects.verify(key, expires, signature, int(now_s))
    path = context.objects.open(key)
    headers = {
        "Cache-Control": f"private, max-age={max(0, int(expires - now_s))}, immutable",
        "Content-Disposition": f'inline; filename="{file_name(key)}"',
        "X-Content-Type-Options": "nosniff",
    }
    return FileResponse(path, media_type=CONTENT_TYPES[path.suffix], headers=headers)


def file_name(key: str) -> str:
    """A name for a download: letters, digits, dots and dashes only."""
    return "firstlight-" + re.sub(r"[^A-Za-z0-9.-]+", "-", key.removeprefix("renders/")).strip("-.")[-80:]
