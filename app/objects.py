"""Pictures by signed URL."""

from __future__ import annotations

import re
import time

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from app.wants import Here
from shared_cache.objects import CONTENT_TYPES

router = APIRouter()

_EXPIRES = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_=-]{1,128}")


@router.get("/objects/{key:path}")
@router.head("/objects/{key:path}", include_in_schema=False)
def picture(key: str, context: Here, expires: str = "", signature: str = "") -> FileResponse:
    """The bytes, if the signature is ours and has not expired."""
    if not (_EXPIRES.fullmatch(expires) and _SIGNATURE.fullmatch(signature)):
        raise HTTPException(403)
    now_s = time.time()
    context.objects.verify(key, int(expires), signature, int(now_s))
    path = context.objects.open(key)
    headers = {
        "Cache-Control": f"private, max-age={max(0, int(int(expires) - now_s))}, immutable",
        "Content-Disposition": f'inline; filename="{file_name(key)}"',
        "X-Content-Type-Options": "nosniff",
    }
    return FileResponse(path, media_type=CONTENT_TYPES[path.suffix], headers=headers)


def file_name(key: str) -> str:
    """A name for a download: letters, digits, dots and dashes only."""
    return "firstlight-" + re.sub(r"[^A-Za-z0-9.-]+", "-", key.removeprefix("renders/")).strip("-.")[-80:]
