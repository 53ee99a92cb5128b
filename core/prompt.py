"""Prompt weights as people paste them: (word), (word:1.3), [word], with backslash escapes.

Source: the attention syntax of AUTOMATIC1111's stable-diffusion-webui wiki, "Attention/emphasis".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from core.errors import InvalidInput

EMPHASIS = 1.1
MIN_WEIGHT, MAX_WEIGHT = 0.0, 2.0
_FAR = 1e6  # products of nested weights stay within, so that none becomes infinite and then, times 0, not a number

_TOKEN = re.compile(
    r"""(?P<escape>\\[()\[\]\\])
      | (?P<weight>:\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?))\s*\))
      | (?P<bracket>[()\[\]])
      | (?P<text>[^\\()\[\]:]+|.)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt and the weight of its tokens, clamped to 0…2."""

    text: str
    weight: float


def parse_weights(prompt: str, field: str = "prompt") -> tuple[Segment, ...]:
    """Splits a prompt into weighted segments; what is not balanced stays literal.

    Raises: InvalidInput when a written weight is not finite.
    """
    pieces: list[tuple[str, float]] = []
    open_at: list[tuple[str, int]] = []  # bracket and index of its piece
    for match in _TOKEN.finditer(prompt):
        kind, text = match.lastgroup, match.group()
        if match["escape"]:
            pieces.append((text[1], 1.0))
        elif match["weight"] and open_at and open_at[-1][0] == "(":
            weight = float(match["number"])
            if not math.isfinite(weight):
                raise InvalidInput(field, f"weight {match['number']!r} is not a finite number")
            _close(pieces, open_at.pop()[1], weight)
        elif match["weight"]:
            pieces.append((text, 1.0))
        elif kind == "bracket" and text in "([":
            open_at.append((text, len(pieces)))
            pieces.append((text, 1.0))
        elif kind == "bracket" and open_at and open_at[-1][0] + text in ("()", "[]"):
            _close(pieces, open_at.pop()[1], EMPHASIS if text == ")" else 1 / EMPHASIS)
        else:
            pieces.append((text, 1.0))
    return _merge(pieces)


def _close(pieces: list[tuple[str, float]], start: int, factor: float) -> None:
    """Drops the opening bracket at start and multiplies what stands after it."""
    pieces[start] = ("", 1.0)
    for i in range(start + 1, len(pieces)):
        pieces[i] = (pieces[i][0], _within(pieces[i][1] * _within(factor)))


def _within(weight: float) -> float:
    return min(max(weight, -_FAR), _FAR)


def _merge(pieces: list[tuple[str, float]]) -> tuple[Segment, ...]:
    merged: list[Segment] = []
    for text, raw in pieces:
        weight = min(max(raw, MIN_WEIGHT), MAX_WEIGHT)
        if not text:
            continue
        if merged and merged[-1].weight == weight:
            merged[-1] = Segment(merged[-1].text + text, weight)
        else:
            merged.append(Segment(text, weight))
    return tuple(merged) or (Segment("", 1.0),)
