"""Bodies of the HTTP and socket API: names and types only; bounds live in core.validate."""

from __future__ import annotations

import json
import sys
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import InvalidInput

MAX_BODY_BYTES = 64 * 1024

_SENTENCES = {
    "extra_forbidden": "is not a field of this request",
    "missing": "is required",
    "json_invalid": "is not valid JSON",
    "model_attributes_type": "must be a JSON object",
    "model_type": "must be a JSON object",
    "string_type": "must be text",
    "string_unicode": "holds a lone surrogate; send well-formed Unicode",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "list_type": "must be a list",
}
_OF_THE_WHOLE = dict.fromkeys(
    ("model_attributes_type", "model_type"), "must be a JSON object, sent as application/json"
)


class Body(BaseModel):
    """Strict: 7.0 and "7" are no whole numbers, and an unknown field is an error. null is as if left out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StyleBody(Body):
    id: str
    weight: float | None = Field(None, description="multiplies the style; its own default weight when left out")


class PreviewBody(Body):
    """What a preview is made of; what is left out takes the preview pool's default, the seed a random one."""

    prompt: str
    negative_prompt: str | None = None
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    styles: list[StyleBody] | None = None
    steps: int | None = None


class LiveBody(PreviewBody):
    """One text of the live socket; rev grows with every change of the box."""

    rev: int


class RenderBody(Body):
    """A recipe, or the preview_id of an accepted preview; then what shaped the preview comes from it."""

    preview_id: str | None = None
    prompt: str | None = None
    negative_prompt: str | None = None
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    styles: list[StyleBody] | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    sampler: str | None = None
    handoff: str | None = None
    deadline_s: float | None = None
    n: int | None = None


AnyBody = TypeVar("AnyBody", bound=Body)


def parse_json(text: str) -> Any:
    """Raises: InvalidInput for text that is not JSON, or nested or long-numbered beyond reason."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise InvalidInput("body", _SENTENCES["json_invalid"]) from None
    except (ValueError, RecursionError):
        raise beyond_reason() from None


def beyond_reason() -> InvalidInput:
    """For JSON that Python declines to read."""
    return InvalidInput("body", f"is nested too deep, or holds a number of over {sys.get_int_max_str_digits()} digits")


def parse_body(model: type[AnyBody], fields: Any) -> AnyBody:
    """Raises: InvalidInput naming the first wrong field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise explain(error.errors(include_input=False, include_url=False)) from None


def explain(errors: Any) -> InvalidInput:
    """The first of pydantic's errors as ours; what was sent is never repeated."""
    first = errors[0]
    kind = first["type"]
    where = [] if kind == "json_invalid" else first["loc"]
    field = printable(".".join(str(part) for part in where)) or "body"
    sentence = _SENTENCES.get(kind, first["msg"])
    return InvalidInput(field, sentence if where else _OF_THE_WHOLE.get(kind, sentence))


def printable(text: str, limit: int = 120) -> str:
    """Text of unknown origin, safe to put in an answer or a log line."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
