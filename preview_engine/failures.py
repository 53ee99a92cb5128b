"""What somebody is told of a preview that failed."""

from __future__ import annotations

from core.errors import InvalidInput, NonFinite
from core.wire import PreviewRequest, pack_frame


def failure_frame(request: PreviewRequest, error: Exception | None) -> bytes:
    """A person can mend wrong input and is told what it is; the rest is for the log."""
    told = error.as_dict() if isinstance(error, InvalidInput | NonFinite) and error.field is not None else None
    body = {"code": getattr(error, "code", "failed"), "message": "the preview could not be made; type on to try again"}
    header = {"session": request.session, "rev": request.rev, "preview_id": request.preview_id}
    return pack_frame({**header, "error": told or body})
