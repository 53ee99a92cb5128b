"""Messages between the web process and the preview pool, and the binary frame of the live socket."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from core.recipe import Recipe


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """What a session wants to see now. Units: sent_s is the clock that all processes share."""

    session: str
    owner: str
    rev: int
    preview_id: str
    reply_to: str
    sent_s: float
    recipe: Recipe

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in ("session", "owner", "rev", "preview_id", "reply_to", "sent_s")}
        return json.dumps({**fields, "recipe": self.recipe.as_dict()})

    @classmethod
    def from_json(cls, text: str | bytes) -> PreviewRequest:
        fields = json.loads(text)
        return cls(**{**fields, "recipe": Recipe.from_dict(fields["recipe"])})


def pack_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """4-byte big-endian header length, JSON header in UTF-8, then the payload."""
    head = json.dumps(header, ensure_ascii=False).encode()
    return len(head).to_bytes(4, "big") + head + payload


def unpack_frame(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises: ValueError when the frame is shorter than its header says."""
    length = int.from_bytes(frame[:4], "big")
    if len(frame) < 4 + length:
        raise ValueError(f"frame of {len(frame)} bytes, header says {length}")
    return json.loads(frame[4 : 4 + length]), frame[4 + length :]
