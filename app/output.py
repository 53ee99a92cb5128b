"""What the command line says: results to standard output, everything else to standard error."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core.errors import FirstlightError, InvalidInput, StartupError
from core.recipe import Recipe

Parameters = ParamSpec("Parameters")
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
UNBOUNDED = 10_000  # characters; no row is that wide
FAILED, NOT_STARTED, INTERRUPTED = 1, 2, 130

errors_to = Console(stderr=True, highlight=False)


def tells(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """A failure becomes its sentence on standard error and an exit code, with --json also {"error": …}."""

    @functools.wraps(command)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except FirstlightError as error:
            if kwargs.get("as_json"):
                print_json({"error": error.as_dict()})
            errors_to.print(f"firstlight: {error.message}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(NOT_STARTED if isinstance(error, StartupError) else FAILED) from None
        except KeyboardInterrupt:
            errors_to.print("stopped", style="yellow")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def print_json(fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def print_rows(names: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None) -> None:
    """A table, or where the terminal is too narrow for it each row in lines of its own: nothing is cut."""
    console = console or Console()
    table = Table(*names, box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    if console.measure(table, options=console.options.update(width=UNBOUNDED)).maximum <= console.width:
        return console.print(table)
    width = max(map(len, names))
    for first, *others in rows:
        console.print(first, markup=False, highlight=False, soft_wrap=True)
        for name, value in zip(names[1:], others, strict=True):
            console.print(f"  {name:{width}}  {value}", markup=False, highlight=False, soft_wrap=True)


def tell_left_out(found: Mapping[str, Any]) -> None:
    """A line for each style that cannot be used, with the reason, and for what is ignored of those that can."""
    for word, about in (("left out", found["problems"]), ("ignored", found["warnings"])):
        for one in about:
            name = f"{one['id']} ({one['file']})" if one["id"] else one["file"]
            typer.echo(f"{word}: {name}: {one['reason']}", err=True)


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """A line that moves while something takes time; call what it yields to change the words."""
    with errors_to.status(text) as status:
        yield status.update


def check_output(path: Path | None) -> None:
    """Raises: InvalidInput before any work is done for a file that cannot be written."""
    if path is None:
        return
    try:
        folder, there = path.resolve().parent, path.exists()
        if path.is_dir():
            raise InvalidInput("--output", f"{path} is a folder; name a file in it")
    except OSError as error:
        raise InvalidInput("--output", f"{path} cannot be written: {error.strerror}") from error
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput("--output", f"must end in {', '.join(FORMATS)}")
    if not folder.is_dir():
        raise InvalidInput("--output", f"the folder {path.parent} does not exist")
    if not os.access(path if there else folder, os.W_OK):
        raise InvalidInput("--output", f"{path} cannot be written by this user; name another place")


def write_picture(path: Path, picture: bytes, preview: Recipe | None = None) -> None:
    """The bytes as they came when path names their format, else converted.

    preview: what made a preview, which a PNG of it carries; a render's comes with it. Raises: InvalidInput when the
    file cannot be written.
    """
    data = _as_named(path, picture, preview)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InvalidInput("--output", f"{path} cannot be written: {error.strerror}") from error


def _as_named(path: Path, picture: bytes, preview: Recipe | None) -> bytes:
    from PIL import Image

    from sampling.picture import from_bytes, to_png

    wanted = FORMATS[path.suffix.lower()]
    with Image.open(io.BytesIO(picture)) as image:
        if image.format == wanted:
            return picture
        if wanted == "PNG" and preview is not None:
            return to_png(from_bytes(picture), preview, "preview")
        converted = io.BytesIO()
        image.convert("RGB").save(converted, wanted)
        return converted.getvalue()


def numbered(path: Path, count: int) -> list[Path]:
    """picture.png, or picture-1.png, picture-2.png … for several."""
    if count == 1:
        return [path]
    return [path.with_stem(f"{path.stem}-{index + 1}") for index in range(count)]
