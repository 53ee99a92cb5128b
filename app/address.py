"""Where the server of a data folder is: a file that it leaves there while it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER_FILE = "server.json"


@contextmanager
def announced(data_dir: Path, url: str) -> Iterator[None]:
    """Leaves word in data_dir for the command line, and takes it back unless another server wrote its own."""
    path = data_dir / SERVER_FILE
    data_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
    try:
        yield
    finally:
        if _read(path).get("pid") == os.getpid():
            path.unlink(missing_ok=True)


def announced_url(data_dir: Path) -> str | None:
    """What the file says, whether or not anybody answers there."""
    url = _read(data_dir / SERVER_FILE).get("url")
    return url if isinstance(url, str) else None


def _read(path: Path) -> dict[str, object]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
