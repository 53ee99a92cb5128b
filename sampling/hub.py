"""Models from the hub: where what was pulled lies on this machine. Importing this reaches nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def cache_folder() -> Path:
    """The hub's own cache, shared with all programs that use it: HF_HUB_CACHE, else hub under HF_HOME."""
    named = os.environ.get("HF_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def repository_folder(hub_id: str) -> Path:
    return cache_folder() / f"models--{hub_id.replace('/', '--')}"


def pulled(hub_id: str, revision: str = "main") -> Path | None:
    """The folder of a repository's files at a revision (a branch, a tag or a commit); None where it was not pulled."""
    folder = repository_folder(hub_id)
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None
