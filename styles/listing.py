"""What a folder of styles lists: the entries of its styles.json, and its LoRA files that this does not name."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sampling.layout import PICKLES
from sampling.lora_names import PEFT_FILE

NAME = "styles.json"
SUFFIX = ".safetensors"
KEYS = ("id", "file", "name", "weight", "trigger_words", "licence", "description")
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with an entry; id is "" where the entry has none."""

    id: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries as they stand, what is left out of them, and what is ignored in them."""

    entries: tuple[object, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read_listing(folder: Path) -> Listing:
    """Where styles.json cannot be read, that is a problem, and the files are listed as if it was not there."""
    listed, trouble = _written(folder / NAME)
    named = {text_of(entry, "file") for entry in listed}
    unlisted = [entry for entry in _unlisted(folder) if entry["file"] not in named]
    broken = [] if trouble is None else [Problem("", NAME, f"{trouble}; the files beside it are offered without it")]
    warnings = [warning for entry in listed if isinstance(entry, dict) for warning in _unknown(entry)]
    return Listing((*listed, *unlisted), (*broken, *_pickles(folder)), tuple(warnings))


def text_of(entry: object, name: str) -> str:
    """A field that may be missing or no text, in text that can be printed."""
    value = entry.get(name) if isinstance(entry, dict) else None
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _written(path: Path) -> tuple[list[object], str | None]:
    """The entries of a styles.json, or why there are none."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except json.JSONDecodeError as error:
        return [], f"cannot be read: line {error.lineno}, column {error.colno}: {error.msg}"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return [], f"cannot be read: line {line} is not UTF-8"
    except RecursionError:
        return [], "cannot be read: it is nested too deep"
    except (OSError, ValueError) as error:
        return [], f"cannot be read: {error}"
    return (entries, None) if isinstance(entries, list) else ([], "is not a list of styles")


def _unknown(entry: dict[str, Any]) -> list[Problem]:
    """A warning for each key that nobody reads."""
    found = []
    for key in entry.keys() - set(KEYS):
        shown = key[:SHOWN_CHARACTERS]
        near = get_close_matches(shown.casefold(), KEYS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(KEYS)}"
        reason = f"{json.dumps(shown)} is no field of a style; {hint}"
        found.append(Problem(text_of(entry, "id"), NAME, reason))
    return sorted(found, key=lambda problem: problem.reason)


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
