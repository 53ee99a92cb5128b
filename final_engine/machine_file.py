"""What was measured on this machine, as JSON files in the data folder, each with what its figures are true of."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from core.cost import Identity

log = logging.getLogger(__name__)
Measured = TypeVar("Measured")


def write_measured(path: Path, identity: Identity, figures: Mapping[str, Any]) -> Path:
    """Replaces the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({"identity": asdict(identity), **figures}, indent=1), encoding="utf-8")
    temporary.replace(path)
    return path


def read_measured(
    path: Path, identity: Identity, parse: Callable[[dict[str, Any]], Measured], command: str
) -> Measured | None:
    """What parse makes of the figures, or None: there are none, or they are refused.

    What is refused is logged with the command that measures it again.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        body = json.loads(text)
        measured = Identity(**body["identity"])
        figures = parse(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s holds no such figures (%r) and is not used; measure again with: %s", path, error, command)
        return None
    if measured != identity:
        log.warning(
            "%s was measured with %s, this is %s; it is not used; measure again with: %s",
            path,
            measured,
            identity,
            command,
        )
        return None
    return figures
