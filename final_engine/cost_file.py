"""The calibrated cost table of this machine, as a file in the data folder."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from core.cost import CostTable, Identity

log = logging.getLogger(__name__)
NAME = "costs.json"
COMMAND = "firstlight bench calibrate"


def write_costs(folder: Path, identity: Identity, table: CostTable) -> Path:
    """Replaces the file as a whole."""
    path = folder / NAME
    folder.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"identity": asdict(identity), **table.to_dict()}, indent=1)
    temporary = path.with_suffix(".part")
    temporary.write_text(body, encoding="utf-8")
    temporary.replace(path)
    return path


def read_costs(folder: Path, identity: Identity) -> CostTable | None:
    """The table, or None: there is none, or it is refused (which is logged, with the command that rebuilds it)."""
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        measured = Identity(**json.loads(text)["identity"])
        table = CostTable.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is no cost table (%r) and is not used; rebuild it with: %s", path, error, COMMAND)
        return None
    if measured != identity:
        log.warning(
            "%s was measured with %s, this is %s; it is not used; rebuild it with: %s",
            path,
            measured,
            identity,
            COMMAND,
        )
        return None
    return table
