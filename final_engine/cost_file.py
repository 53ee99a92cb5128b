"""The calibrated cost table of this machine, as a file in the data folder."""

from __future__ import annotations

from pathlib import Path

from core.cost import CostTable, Identity
from final_engine.machine_file import read_measured, write_measured

NAME = "costs.json"
COMMAND = "firstlight bench calibrate"


def write_costs(folder: Path, identity: Identity, table: CostTable) -> Path:
    """Replaces the file as a whole."""
    return write_measured(folder / NAME, identity, table.to_dict())


def read_costs(folder: Path, identity: Identity) -> CostTable | None:
    """The table, or None: there is none, or it is refused (which is logged, with the command that rebuilds it)."""
    return read_measured(folder / NAME, identity, CostTable.from_dict, COMMAND)
