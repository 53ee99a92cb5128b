"""Pictures on disk by signed URL; those in S3 are fetched there."""

from __future__ import annotations

import re
import time
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from app.wants import Here
from shared_cache.objects import DiskObjects, content_type_of, disposition

router = APIRouter()

_EXPIRES = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_=-]{1,128}")


@router.get("/objects/{key:path}")
@router.head("/objects/{key:path}", include_in_schema=False)
def picture(
    key: str, context: Here, expires: str = "", signature: str = "", download: Literal["", "1"] = ""
) -> FileResponse:
    """The bytes, if the signature is ours and has not expired."""
    objects = context.objects
    if not isinstance(objects, DiskObjects):
        raise HTTPException(404)
    if not (_EXPIRES.fullmatch(expires) and _SIGNATURE.fullmatch(signature)):
        raise HTTPException(403)
    now_s = time.time()
    objects.verify(key, int(expires), signature, int(now_s))
    path = objects.open(key)
    headers = {
        "Cache-Control": f"private, max-age={max(0, int(int(expires) - now_s))}, immutable",
        "Content-Disposition": disposition(key, download == "1"),
        "X-Content-Type-Options": "nosniff",
    }
    return FileResponse(path, media_type=content_type_of(key), headers=headers)
