"""Which files of a repository a profile needs, so that nothing else is fetched. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import StartupError
from sampling.families import FAMILIES, SDXL_FAMILY
from sampling.layout import PICKLES, REMEDY_PICKLE, TEXTS, TOKENIZERS, choose_weights
from sampling.plan import REMEDY, Described, Source, reference

WHOLE = ("model_index.json", "scheduler/scheduler_config.json")
PARTS = {name: (family.network, "vae", *TEXTS, *TOKENIZERS) for name, family in FAMILIES.items()}
TOKENIZER_FILES = (".json", ".txt", ".model")


@dataclass(slots=True)
class Needs:
    """Of one source: folders that hold a network or a tokenizer, and single files.

    whole: all folders of a model, of whichever family it turns out to be.
    """

    folders: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    whole: bool = False


def needs_of(described: Described) -> dict[str, Needs]:
    """By the sources' names.

    Raises: StartupError when the profile names a source that it does not describe.
    """
    found = {name: Needs() for name in described.sources}
    try:
        for pool in ("preview", "final"):
            _add_pool(found, described, described.fields[pool])
    except (KeyError, TypeError) as error:
        raise StartupError(f"{described.path}: {error!r}", REMEDY) from error
    return found


def _add_pool(found: Mapping[str, Needs], described: Described, fields: Mapping[str, Any]) -> None:
    main = described.main_source(fields)
    parts = set(PARTS[described.family])
    for name in ("vae", "decoder"):
        if fields.get(name):
            source, path = reference(fields[name], main)
            found[source].folders.add(path)
            parts.discard(name)
    if fields.get("adapter"):
        source, path = reference(fields["adapter"], main)
        found[source].files.add(path)
    found[main].files.update(WHOLE)
    found[main].folders.update(parts)


def own_needs() -> Needs:
    """Of a repository that is a whole model."""
    return Needs(files=set(WHOLE), whole=True)


def choose_files(source: Source, needs: Needs, names: Collection[str]) -> list[str]:
    """The files to fetch among those that a repository or a folder holds.

    Raises: StartupError when one is not among them.
    """
    chosen = set()
    for name in needs.files:
        if name not in names:
            raise StartupError(f"{source.where} holds no {name}", "choose another source for it in the profile")
        chosen.add(name)
    for folder in _of_family(names) if needs.whole else needs.folders:
        chosen.update(_of_folder(source, folder, names))
    return sorted(chosen)


def _of_family(names: Collection[str]) -> tuple[str, ...]:
    """The folders of the family whose network is there; of SDXL where none is, so that its lack is told."""
    found = (family for family in FAMILIES.values() if f"{family.network}/config.json" in names)
    return PARTS[next(found, SDXL_FAMILY).name]


def _of_folder(source: Source, folder: str, names: Collection[str]) -> Iterator[str]:
    prefix = "" if folder == "." else f"{folder}/"
    inside = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    inside = {name for name in inside if "/" not in name}
    if folder in TOKENIZERS:
        yield from (prefix + name for name in inside if name.endswith(TOKENIZER_FILES))
        return
    weights = choose_weights(inside, source.variant)
    if weights is None or "config.json" not in inside:
        pickled = any(name.endswith(PICKLES) for name in inside)
        cause = f"{source.where} holds no config.json with safetensors in {folder}"
        raise StartupError(cause, REMEDY_PICKLE if pickled else "name a repository of this layout")
    yield f"{prefix}config.json"
    yield prefix + weights
    if weights.endswith(".json"):
        yield from (prefix + name for name in _shards(inside, weights))


def _shards(names: Collection[str], index: str) -> list[str]:
    """The shards that belong to an index, by their names; the index itself need not be read for it."""
    stem = index.split(".")[0]
    middle = index.removeprefix(f"{stem}.").removesuffix(".json").replace("safetensors", "").replace("index", "")
    variant = re.escape(middle.strip(".")) if middle.strip(".") else ""
    dotted = rf"(?:\.{variant})" if variant else ""
    pattern = re.compile(rf"{stem}{dotted}?-\d+-of-\d+{dotted}?\.safetensors")
    return [name for name in names if pattern.fullmatch(name) and (not variant or variant in name)]
