"""Reads what a model folder promises and checks that its files are whole, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.errors import StartupError
from core.profile import Bucket, Limits, ModelProfile, Pool
from core.recipe import Sampler

PROFILE_FILE = "storybook.json"
REMEDY = "copy the model folder again, or point FIRSTLIGHT_MODEL_DIR at a complete one"
REMEDY_LFS = "run `git lfs install && git lfs pull` in the clone, then start again"
MAX_HEADER_BYTES = 100_000_000  # the limit that the safetensors format sets itself
CONFIGS = ("model_index.json", "scheduler/scheduler_config.json")
WEIGHTED = ("unet", "vae", "text_encoder", "text_encoder_2")
TOKENIZERS = ("tokenizer", "tokenizer_2")


def load_profile(folder: Path) -> ModelProfile:
    """The profile of a model folder whose files were checked.

    Raises: StartupError naming the missing or broken file and what to do.
    """
    fields = _read_json(folder / PROFILE_FILE)
    check_files(folder)
    try:
        profile = _profile_from(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise StartupError(f"{folder / PROFILE_FILE}: {error!r}", REMEDY) from error
    for pool in (profile.preview, profile.final):
        if pool.adapter is not None:
            check_safetensors(folder / pool.adapter)
        if pool.decoder is not None:
            _check_part(folder / pool.decoder)
    return profile


def check_files(folder: Path) -> None:
    """Raises: StartupError for the first file that is missing, a pointer or cut short."""
    for name in CONFIGS:
        _read_json(folder / name)
    for part in WEIGHTED:
        _check_part(folder / part)
    for part in TOKENIZERS:
        if not any((folder / part / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            raise StartupError(f"{folder / part} holds neither tokenizer.json nor vocab.json", REMEDY)


def _check_part(part: Path) -> None:
    _read_json(part / "config.json")
    weights = sorted(part.glob("*.safetensors"))
    if not weights:
        raise StartupError(f"{part} holds no .safetensors file", REMEDY)
    for path in weights:
        check_safetensors(path)


def check_safetensors(path: Path) -> None:
    """Reads the header alone and compares its promise with the file's size.

    Raises: StartupError naming the file.
    """
    if not path.is_file():
        raise StartupError(f"{path} is missing", REMEDY)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise StartupError(f"{path} is a Git LFS pointer, not the weights", REMEDY_LFS)
        header_bytes = int.from_bytes(start, "little")
        if len(start) < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise StartupError(f"{path} is cut short or not a safetensors file", REMEDY)
        head = file.read(header_bytes)
    if 8 + header_bytes + _data_bytes(path, head) != size:
        raise StartupError(f"{path} is cut short: its header promises another length", REMEDY)


def _data_bytes(path: Path, head: bytes) -> int:
    try:
        tensors = {name: entry for name, entry in json.loads(head).items() if name != "__metadata__"}
        return max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StartupError(f"{path} has a broken safetensors header: {error}", REMEDY) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    except ValueError as error:
        raise StartupError(f"{path} is not JSON: {error}", REMEDY) from error
    if not isinstance(fields, dict):
        raise StartupError(f"{path} must hold a JSON object", REMEDY)
    return fields


def _profile_from(fields: dict[str, Any]) -> ModelProfile:
    buckets = tuple(Bucket(int(width), int(height)) for width, height in fields["buckets"])
    if not buckets:
        raise ValueError("buckets is empty")
    return ModelProfile(
        id=str(fields["id"]),
        version=str(fields["version"]),
        licence=str(fields["licence"]),
        buckets=buckets,
        preview=_pool_from(fields["preview"]),
        final=_pool_from(fields["final"]),
        limits=Limits(**{"max_side": max(max(b.width, b.height) for b in buckets), **fields.get("limits", {})}),
    )


def _pool_from(fields: dict[str, Any]) -> Pool:
    adapter, decoder = fields.get("adapter"), fields.get("decoder")
    return Pool(
        sampler=Sampler(fields["sampler"]),
        steps=int(fields["steps"]),
        guidance_scale=float(fields["guidance_scale"]),
        adapter=None if adapter is None else str(adapter),
        decoder=None if decoder is None else str(decoder),
    )
