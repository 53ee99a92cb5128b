"""Says whether a file is what it claims, from its header and size alone; no tensor is read.

Source: the format section of the safetensors documentation.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from core.errors import InvalidInput

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
IMPOSTORS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint?), not safetensors"),
    (b"\x80", "is a pickle, not safetensors"),
)


def check_safetensors(path: Path) -> None:
    """Passes a whole, well-formed safetensors file with at least one tensor.

    Raises: InvalidInput naming the file and what is wrong with it.
    """
    reason = _wrong(path)
    if reason is not None:
        raise InvalidInput(path.name, reason)


def read_header(path: Path) -> dict[str, Any]:
    """The header as it stands: tensor names to dtype, shape and data_offsets, and `__metadata__`.

    Raises: InvalidInput as check_safetensors.
    """
    check_safetensors(path)
    with open(path, "rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header


def _wrong(path: Path) -> str | None:
    try:
        if not path.is_file():
            return "is missing" if not path.exists() else "is not a file"
        size_bytes = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(64)
            length = int.from_bytes(start[:8], "little")
            for magic, reason in IMPOSTORS:
                if start.startswith(magic) and (magic != b"\x80" or length > size_bytes):
                    return reason
            if size_bytes < 8:
                return f"is cut off: {size_bytes} bytes"
            if length > min(size_bytes - 8, MAX_HEADER_BYTES):
                if all(byte in TEXT for byte in start):
                    return "is not safetensors: it is text"
                return f"is not safetensors, or cut off: it declares a header of {length} bytes, it has {size_bytes}"
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return _wrong_header(text, size_bytes - 8 - length)


def _wrong_header(text: bytes, data_bytes: int) -> str | None:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return "is not safetensors: its header is not JSON"
    if not isinstance(header, dict):
        return "is not safetensors: its header is not an object"
    tensors = {name: info for name, info in header.items() if name != "__metadata__"}
    if not tensors:
        return "holds no tensors"
    spans = []
    for name, info in tensors.items():
        span = _span(info)
        if span is None:
            return f"is damaged: the header's entry of tensor {name[:80]!r} makes no sense"
        spans.append(span)
    return _wrong_spans(sorted(spans), data_bytes)


def _wrong_spans(spans: list[tuple[int, int]], data_bytes: int) -> str | None:
    """Tensors stand one behind the other without a hole, and fill the file."""
    end = 0
    for begin, stop in spans:
        if begin != end:
            return "is damaged: its tensors overlap or leave a hole"
        end = stop
    if end > data_bytes:
        return f"is cut off: {data_bytes} bytes of tensors, its header promises {end}"
    return f"is damaged: {data_bytes - end} bytes follow its last tensor" if end < data_bytes else None


def _span(info: object) -> tuple[int, int] | None:
    """Begin and end of a tensor's bytes, None unless they agree with its dtype and shape."""
    if not isinstance(info, dict):
        return None
    dtype, shape, offsets = str(info.get("dtype")), info.get("shape"), info.get("data_offsets")
    if dtype not in DTYPE_BITS or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        return None
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    return (offsets[0], offsets[1]) if bits == 8 * (offsets[1] - offsets[0]) else None


def _naturals(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
