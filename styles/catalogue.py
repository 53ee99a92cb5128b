"""The styles that a request may name: those of the model's folder `styles`, then those of the folder FIRSTLIGHT_STYLES.

A folder's LoRA files are its styles; `styles.json` in it may give them names, weights and words. What cannot be used is
reported and left out; the others stand.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StartupError
from core.profile import Limits
from core.settings import Settings
from sampling.layout import PICKLES
from sampling.lora_names import PEFT_FILE
from sampling.plan import plan_of
from shared_cache.safetensors_header import check_safetensors
from styles.fit import Fit, check_fit

STYLE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
SUFFIX = ".safetensors"
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
    """Styles in their order, and what was left out of them."""

    styles: tuple[Style, ...] = ()
    problems: tuple[Problem, ...] = ()

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
    problems = []
    for folder in folders:
        listed, trouble = ([], None) if folder is None else _listing(folder)
        problems += [] if trouble is None else [trouble]
        problems += [] if folder is None else _pickles(folder)
        for entry in listed:
            try:
                style = _style(folder or Path(), entry, styles, fit)
            except InvalidInput as error:
                file = _text_of(entry, "file")
                reason = error.message.removeprefix(f"{Path(file).name}: ")
                problems.append(Problem(_text_of(entry, "id"), file, reason))
            else:
                styles[style.id] = style
    return Catalogue(tuple(styles.values()), tuple(problems))


def _listing(folder: Path) -> tuple[list[Any], Problem | None]:
    """The entries of styles.json, then one for each file that it does not name; none where it is broken, and why."""
    listing = folder / "styles.json"
    try:
        entries = json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else []
    except (OSError, ValueError, RecursionError) as error:
        return [], Problem("", listing.name, f"cannot be read: {error}")
    if not isinstance(entries, list):
        return [], Problem("", listing.name, "is not a list of styles")
    named = {_text_of(entry, "file") for entry in entries}
    return [*entries, *(entry for entry in _unlisted(folder) if entry["file"] not in named)], None


def _unlisted(folder: Path) -> list[dict[str, Any]]:
    """An entry for each LoRA file of a folder, and for each folder in it that peft's save_pretrained wrote."""
    found = {path.name: path.stem for path in folder.glob("*") if path.suffix.lower() == SUFFIX}
    found |= {f"{path.parent.name}/{PEFT_FILE}": path.parent.name for path in folder.glob(f"*/{PEFT_FILE}")}
    return [{"id": _id_of(name), "file": file, "name": name} for file, name in sorted(found.items())]


def _id_of(name: str) -> str:
    """A style's id from a file's name: its letters without accents, or a digest of it where it has none of ours."""
    plain = unicodedata.normalize("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_")[:64] or f"style-{digest}"


def _pickles(folder: Path) -> list[Problem]:
    """Files that somebody may take for styles, and that are never read."""
    names = sorted(path.name for path in folder.glob("*") if path.suffix.lower() in PICKLES)
    return [Problem("", name, "is a pickle, which can run any program; bring the .safetensors of it") for name in names]


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


def _text_of(entry: object, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
