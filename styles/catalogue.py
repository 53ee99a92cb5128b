"""The styles that a request may name: those of the model's folder `styles`, then those of the folder FIRSTLIGHT_STYLES.

A folder's LoRA files are its styles; `styles.json` in it may give them names, weights and words. What cannot be used is
reported and left out; the others stand.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StartupError
from core.profile import Limits
from core.settings import Settings
from sampling.plan import plan_of
from shared_cache.safetensors_header import check_safetensors
from styles.fit import Fit, check_fit
from styles.listing import Problem, read_listing, text_of

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
class Catalogue:
    """Styles in their order, what was left out of them, and what was ignored in what is said about them."""

    styles: tuple[Style, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def all(self) -> tuple[Style, ...]:
        return self.styles

    def get(self, style_id: str) -> Style | None:
        return next((style for style in self.styles if style.id == style_id), None)

    def reasons(self) -> dict[str, str]:
        """Why styles are left out, by id."""
        return {problem.id: problem.reason for problem in self.problems if self.get(problem.id) is None}

    def ids(self) -> frozenset[str]:
        return frozenset(style.id for style in self.styles)

    def paths(self) -> dict[str, Path]:
        """Each style's file by its id."""
        return {style.id: style.path for style in self.styles}


def open_catalogue(settings: Settings) -> Catalogue:
    """The styles that fit the model of these settings.

    Raises: StartupError where the model cannot be used, or FIRSTLIGHT_STYLES names no folder.
    """
    plan, own = plan_of(settings.model), settings.styles
    if own is not None and not own.expanduser().is_dir():
        cause = f"FIRSTLIGHT_STYLES names {own}, which is not a folder"
        raise StartupError(cause, "create it, with .safetensors files in it, or unset the variable")
    return load_catalogue(plan.profile.styles, own and own.expanduser(), fit=Fit.of(plan))


def load_catalogue(*folders: Path | None, fit: Fit | None = None) -> Catalogue:
    """Reads and checks everything in folders of styles; without fit, whatever model the files were made for."""
    styles: dict[str, Style] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for folder in filter(None, folders):
        listing = read_listing(folder)
        problems += listing.problems
        warnings += listing.warnings
        for entry in listing.entries:
            try:
                style = _style(folder, entry, styles, fit)
            except InvalidInput as error:
                file = text_of(entry, "file")
                reason = error.message.removeprefix(f"{Path(file).name}: ")
                problems.append(Problem(text_of(entry, "id"), file, reason))
            else:
                styles[style.id] = style
    return Catalogue(tuple(styles.values()), tuple(problems), tuple(warnings))


def _style(folder: Path, entry: object, known: Mapping[str, Style], fit: Fit | None) -> Style:
    if not isinstance(entry, dict):
        raise InvalidInput("style", "is not an object")
    style_id = _string(entry, "id")
    if not STYLE_ID.fullmatch(style_id):
        raise InvalidInput("id", "must be small letters, digits, - and _, at most 64")
    if style_id in known:
        other = known[style_id].path.name
        raise InvalidInput("id", f"{style_id} stands twice, also for {other}; give it another in styles.json")
    path = _file(folder, _string(entry, "file"))
    if fit is not None:
        check_fit(path, fit)
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
