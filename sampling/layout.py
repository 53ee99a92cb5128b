"""Where the parts of a model lie: folders and single files in the layouts that people download. No torch.

Published folder: one folder a part, with config.json and safetensors, whole or in shards, perhaps of a variant (fp16).
Single file: all networks in one .safetensors with the names of the original code; configs and tokenizers are ours.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StartupError
from shared_cache.safetensors_header import DTYPE_BITS, read_header

SDXL = Path(__file__).resolve().parent.parent / "models" / "sdxl"  # configs and tokenizers as published
TEXTS = ("text_encoder", "text_encoder_2")
NETWORKS = ("unet", "vae", *TEXTS)
TOKENIZERS = ("tokenizer", "tokenizer_2")
VOCABULARIES = ("tokenizer.json", "vocab.json")
STEMS = ("diffusion_pytorch_model", "model")
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
ORIGINAL = {  # what a part's weights are called in a single file
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder": "conditioner.embedders.0.transformer.",
    "text_encoder_2": "conditioner.embedders.1.model.",
}
REMEDY = (
    "copy the model again, or let FIRSTLIGHT_MODEL name a complete one; `firstlight models check` looks at all of it"
)
REMEDY_LFS = "run `git lfs install && git lfs pull` in the clone, then start again"
REMEDY_PICKLE = "get the .safetensors of this model: a pickle can run any program when it is read, so none is read here"
VARIANT = re.compile(r"\w+\.(?:(\w+)\.safetensors(?:\.index\.json)?|safetensors\.index\.(\w+)\.json)")
SAMPLE_BYTES = 256  # read of every tensor, to tell one file from another


@dataclass(frozen=True, slots=True)
class Part:
    """One network on the disk. original: the prefix of its weights in a single file; empty where each has its own."""

    name: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    original: str = ""

    def tensors(self) -> dict[str, dict[str, Any]]:
        """Every weight's entry in the headers. Raises: StartupError for a file that is not whole."""
        found: dict[str, dict[str, Any]] = {}
        for path in self.files:
            header = header_of(path)
            found |= {name: entry for name, entry in header.items() if name.startswith(self.original)}
        found.pop("__metadata__", None)
        return found

    def elements(self) -> int:
        """How many numbers the weights are."""
        return sum(math.prod(entry["shape"]) for entry in self.tensors().values())

    def stored_bytes(self) -> int:
        return sum(math.prod(entry["shape"]) * DTYPE_BITS[entry["dtype"]] // 8 for entry in self.tensors().values())


def header_of(path: Path) -> dict[str, Any]:
    """Raises: StartupError naming the file, what is wrong with it and what to do."""
    try:
        return read_header(path)
    except InvalidInput as error:
        reason = error.message.removeprefix(f"{path.name}: ")
        remedy = (
            REMEDY_LFS if "Git LFS" in reason else REMEDY_PICKLE if "pickle" in reason or "zip" in reason else REMEDY
        )
        raise StartupError(f"{path} {reason}", remedy) from error


def read_json(path: Path) -> dict[str, Any]:
    """Raises: StartupError for a file that is missing or holds no JSON object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    except ValueError as error:
        raise StartupError(f"{path} is not JSON: {error}", REMEDY) from error
    if not isinstance(fields, dict):
        raise StartupError(f"{path} must hold a JSON object", REMEDY)
    return fields


def choose_weights(names: Collection[str], variant: str | None) -> str | None:
    """The file, or the index of shards, that holds a part's weights among the files of its folder; None: there is none.

    The variant where it is there, else the plain files, else any other variant.
    """
    found = [VARIANT.fullmatch(name) for name in names]
    others = sorted({one.group(1) or one.group(2) for one in found if one is not None} - {"non_ema"})
    for wanted in (variant, None, *others):
        for stem in STEMS:
            for name in _spellings(stem, wanted):
                if name in names:
                    return name
    return None


def _spellings(stem: str, variant: str | None) -> tuple[str, ...]:
    if variant is None:
        return f"{stem}.safetensors", f"{stem}.safetensors.index.json"
    whole = f"{stem}.{variant}.safetensors"
    return whole, f"{stem}.safetensors.index.{variant}.json", f"{whole}.index.json"


def shards_of(index: Mapping[str, Any]) -> list[str]:
    """The files that an index of shards names. Raises: ValueError where it is none."""
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ValueError("it holds no weight_map")
    shards = sorted(set(files.values()))
    if any("/" in name or "\\" in name for name in shards):
        raise ValueError("its shards do not lie beside it")
    return shards


def part_of(folder: Path, name: str, variant: str | None = None) -> Part:
    """A part of a published folder.

    Raises: StartupError when config or weights are missing, in shards of which one is missing, or pickled.
    """
    config = read_json(folder / "config.json")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    chosen = choose_weights(names, variant)
    if chosen is None:
        pickled = sorted(one for one in names if one.endswith(PICKLES))
        if pickled:
            raise StartupError(f"{folder} holds its weights as a pickle ({pickled[0]})", REMEDY_PICKLE)
        raise StartupError(f"{folder} holds no .safetensors file", REMEDY)
    return Part(name, config, tuple(_whole(folder, chosen)))


def _whole(folder: Path, chosen: str) -> Iterator[Path]:
    if not chosen.endswith(".json"):
        yield folder / chosen
        return
    try:
        shards = shards_of(read_json(folder / chosen))
    except ValueError as error:
        raise StartupError(f"{folder / chosen} is no index of shards: {error}", REMEDY) from error
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise StartupError(f"{folder} lacks {len(missing)} of {len(shards)} shards, the first {missing[0]}", REMEDY)
    yield from (folder / name for name in shards)


def part_of_config(configs: Path, name: str) -> Part:
    """A part of which only the config is there."""
    return Part(name, read_json(configs / name / "config.json"), ())


def part_in(path: Path, name: str, configs: Path) -> Part:
    """A part of a single file; whether its weights are there is said where it is opened."""
    return Part(name, read_json(configs / name / "config.json"), (path,), ORIGINAL[name])


def tokenizer_of(folder: Path) -> Path:
    """Raises: StartupError when it has no vocabulary."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise StartupError(f"{folder} holds neither {' nor '.join(VOCABULARIES)}", REMEDY)
    if not (folder / "tokenizer.json").is_file() and not (folder / "merges.txt").is_file():
        raise StartupError(f"{folder} holds vocab.json without merges.txt", REMEDY)
    return folder


def fingerprint(parts: Sequence[Part], texts: Sequence[Path]) -> str:
    """Names these weights and texts: sixteen hexadecimal digits, the same wherever and under what name they lie.

    Of weights the headers and a sample of every tensor are read, so that it takes a moment: training changes every
    number of the tensors that it changes. Raises: StartupError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps([part.name, dict(part.config)], sort_keys=True).encode())
    for path in dict.fromkeys(file for part in parts for file in part.files):
        digest.update(sample_of(path))
    for path in texts:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def sample_of(path: Path) -> bytes:
    """A digest of a file's header and of some bytes from the middle of every tensor."""
    header = header_of(path)
    spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    try:
        with path.open("rb") as file:
            length = file.read(8)
            digest = hashlib.sha256(file.read(int.from_bytes(length, "little")))
            for begin, end in spans:
                file.seek(8 + int.from_bytes(length, "little") + max(begin, (begin + end - SAMPLE_BYTES) // 2))
                digest.update(file.read(min(SAMPLE_BYTES, end - begin)))
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    return digest.digest()


def same(one: Part, other: Part) -> bool:
    """Whether two parts are one: the same config, and files of the same content wherever they lie."""
    if dict(one.config) != dict(other.config) or len(one.files) != len(other.files) or one.original != other.original:
        return False
    return all(_equal(a, b) for a, b in zip(one.files, other.files, strict=True))


def _equal(one: Path, other: Path) -> bool:
    if one.samefile(other):
        return True
    return sample_of(one) == sample_of(other) and filecmp.cmp(one, other, shallow=False)


def texts_of(folder: Path) -> list[Path]:
    """The files of a tokenizer's folder, in order."""
    return sorted(path for path in folder.iterdir() if path.is_file())
