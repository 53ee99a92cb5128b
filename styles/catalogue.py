"""The styles that come with a model: `styles/styles.json` in its folder, beside the LoRA files that it lists.

A bad entry is reported and left out; the others stand.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.profile import Limits
from shared_cache.safetensors_header import check_safetensors

STYLE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
MAX_WEIGHT = Limits().max_style_weight


@dataclass(frozen=True, slots=True)
class Style:
    """One usable style; weight is the default that a request may change, sha256 that of the file's content."""

    id: str
    name: str
    path: Path
    weight: float
    trigger_words: tuple[str, ...]
    licence: str
    description: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry is left out; id is "" where the entry has none."""

    id: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Styles in the order of the file, and what was left out of it."""

    styles: tuple[Style, ...] = ()
    problems: tuple[Problem, ...] = ()

    def all(self) -> tuple[Style, ...]:
        return self.styles

    def get(self, style_id: str) -> Style | None:
        return next((style for style in self.styles if style.id == style_id), None)

    def ids(self) -> frozenset[str]:
        return frozenset(style.id for style in self.styles)

    def paths(self) -> dict[str, Path]:
        """Each style's file by its id."""
        return {style.id: style.path for style in self.styles}


def load_catalogue(folder: Path | None) -> Catalogue:
    """Reads and checks everything in a model's folder of styles; one without styles.json has none."""
    listing = None if folder is None else folder / "styles.json"
    if folder is None or listing is None or not listing.exists():
        return Catalogue()
    try:
        entries = json.loads(listing.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return Catalogue(problems=(Problem("", listing.name, f"cannot be read: {error}"),))
    if not isinstance(entries, list):
        return Catalogue(problems=(Problem("", listing.name, "is not a list of styles"),))
    styles: dict[str, Style] = {}
    problems = []
    for entry in entries:
        try:
            style = _style(folder, entry, styles)
        except InvalidInput as error:
            problems.append(Problem(_text_of(entry, "id"), _text_of(entry, "file"), error.message))
        else:
            styles[style.id] = style
    return Catalogue(tuple(styles.values()), tuple(problems))


def _style(folder: Path, entry: object, known: Mapping[str, Style]) -> Style:
    if not isinstance(entry, dict):
        raise InvalidInput("style", "is not an object")
    style_id = _string(entry, "id")
    if not STYLE_ID.fullmatch(style_id):
        raise InvalidInput("id", "must be small letters, digits, - and _, at most 64")
    if style_id in known:
        raise InvalidInput("id", "stands twice")
    path = _file(folder, _string(entry, "file"))
    return Style(
        id=style_id,
        name=_string(entry, "name", style_id),
        path=path,
        weight=_weight(entry.get("weight", 1.0)),
        trigger_words=_words(entry.get("trigger_words", [])),
        licence=_string(entry, "licence", "unknown"),
        description=_string(entry, "description", ""),
        sha256=_digest(path),
    )


def _file(folder: Path, name: str) -> Path:
    """The checked file; it lies in the folder, whatever its name says."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput("file", "must lie in the styles folder")
    check_safetensors(path)
    return path


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInput(path.name, f"cannot be read: {error.strerror}") from error


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidInput("weight", "must be a number")
    if not 0 <= value <= MAX_WEIGHT:
        raise InvalidInput("weight", f"must lie within 0 and {MAX_WEIGHT:g}")
    return float(value)


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise InvalidInput("trigger_words", "must be a list of words")
    return tuple(_sendable("trigger_words", word) for word in value)


def _string(entry: dict[str, Any], name: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise InvalidInput(name, "must be a text")
    return _sendable(name, value)


def _sendable(name: str, text: str) -> str:
    """Text that can be written to a page, a log and a database."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(name, "holds half a character (a lone surrogate)") from error
    if "\0" in text:
        raise InvalidInput(name, "holds a NUL character")
    return text


def _text_of(entry: object, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
