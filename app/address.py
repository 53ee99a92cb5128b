"""Where the server of a data folder is: a file that it leaves there while it runs."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import StartupError

log = logging.getLogger(__name__)
SERVER_FILE = "server.json"
LOCK_FILE = "server.lock"  # held by who is announced, and let go of by the system however that one ends


@contextmanager
def announced(data_dir: Path, url: str, alone: bool) -> Iterator[None]:
    """Leaves word in data_dir for the command line; beside a server that is announced there already, it leaves none.

    alone: whether there may be one server of this folder only, as it is where the queue lies in it.
    Raises: StartupError naming the other server, when there is one and this must be alone, or the folder, when it
    cannot be made.
    """
    path = data_dir / SERVER_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = f"the data folder {data_dir} cannot be made: {error.strerror}"
        raise StartupError(cause, "choose another folder with FIRSTLIGHT_DATA_DIR") from None
    with open(data_dir / LOCK_FILE, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = announced_url(data_dir) or "an address that it has not told yet"
            if alone:
                cause = f"a server of the data folder {data_dir} runs already, at {other}"
                remedy = "use that one, stop it, or choose another folder with FIRSTLIGHT_DATA_DIR"
                raise StartupError(cause, remedy) from None
            log.info("commands in the data folder %s talk to the server that was there first, at %s", data_dir, other)
            yield
            return
        path.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def announced_url(data_dir: Path) -> str | None:
    """What the file says, whether or not anybody answers there."""
    try:
        fields = json.loads((data_dir / SERVER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    url = fields.get("url") if isinstance(fields, dict) else None
    return url if isinstance(url, str) else None
