"""Which file a style's name means now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A file as it lies on the disk: another file, or other content, under the same name is another source.

    Units: nanoseconds; changed_ns is when the inode changed, which no copying tool sets back.
    """

    path: Path
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def source_of(style_id: str, paths: Mapping[str, Path]) -> Source:
    """Raises: InvalidInput for a style that is unknown or whose file is gone."""
    path = paths.get(style_id)
    if path is None:
        raise InvalidInput("styles", f"style {style_id} is not installed")
    try:
        stat = path.stat()
    except OSError as error:
        raise InvalidInput("styles", f"style {style_id} cannot be read: {error.strerror}") from error
    return Source(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
