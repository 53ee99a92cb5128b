"""Failures as HTTP answers: one JSON shape for all of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from app.bodies import MAX_BODY_BYTES, beyond_reason, explain, printable
from core.errors import (
    BlockedPrompt,
    Conflict,
    FirstlightError,
    InvalidInput,
    NonFinite,
    NotFound,
    Overloaded,
    OverQuota,
    Unavailable,
)
from shared_cache.redis_faults import explain as fault_of

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
STATUS: dict[type[FirstlightError], int] = {
    InvalidInput: 422,
    BlockedPrompt: 422,
    NonFinite: 422,  # told of with the styles that gave it; without them it is a failure of ours
    NotFound: 404,
    Conflict: 409,
    OverQuota: 429,
    Overloaded: 503,
    Unavailable: 503,
}
_HTTP_WORDS = {
    400: ("invalid", "the request could not be read"),
    403: ("forbidden", "a picture needs its signed address; its render names a fresh one"),
    404: ("not_found", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not take that method"),
    413: ("too_large", f"a request body may have at most {MAX_BODY_BYTES} bytes"),
}


def error_body(error: FirstlightError) -> dict[str, object]:
    """What stands under "error"; safe to encode as UTF-8 whatever the text came from."""
    return {k: printable(v, 2000) if isinstance(v, str) else v for k, v in error.as_dict().items()}


def answer(error: FirstlightError) -> JSONResponse:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse({"error": error_body(error)}, status, headers)


def http_answer(status: int, detail: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    code, message = _HTTP_WORDS.get(status, ("http", printable(detail)))
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def queue_away(error: Exception) -> Unavailable:
    """What those who ask are told; the client has told those who run the app."""
    return Unavailable(f"the queue {fault_of(error).state}; try again in a few seconds")


def install(app: FastAPI) -> None:
    """Every failure of our own routes becomes {"error": {code, message, field?}}."""
    app.add_exception_handler(FirstlightError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RedisError, _on_redis)
    app.add_exception_handler(Exception, _on_bug)


async def on_http_of_page(request: Request, error: Exception) -> Response:
    """For the app that holds the page: Gradio's own routes keep the answers that gradio_client reads."""
    assert isinstance(error, HTTPException)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if path.startswith("/gradio_api/"):
        return await http_exception_handler(request, error)
    return await _on_http(request, error)


async def _on_ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FirstlightError)
    return answer(error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Each place begins with where it was: body, query, header.
    return answer(explain([{**first, "loc": first["loc"][1:]} for first in error.errors()[:1]]))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    cause = error.__cause__  # FastAPI's 400 for a body that could not be parsed
    if isinstance(cause, (RecursionError, ValueError)) and not isinstance(cause, UnicodeError):
        return answer(beyond_reason())
    return http_answer(error.status_code, str(error.detail), error.headers)


async def _on_redis(request: Request, error: Exception) -> JSONResponse:
    return answer(queue_away(error))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected failure in %s %s", request.method, request.url.path, exc_info=error)
    message = "something went wrong on our side; the log has the details"
    return JSONResponse({"error": {"code": "internal", "message": message}}, 500)
