"""The text-encoder part of styles: acts while a prompt is encoded, and decides the embedding's key."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from core.errors import InvalidInput
from core.recipe import StyleUse
from sampling import lora
from sampling.lora import LoraLayer, Networks
from sampling.lora_names import TEXT, TEXT_2
from sampling.packs import Layout, Placed, make_pack
from sampling.slots import Acting, EachThread, install
from sampling.style_files import Source, source_of
from shared_cache.safetensors_header import read_header

MAX_KEPT = 16  # files; a large model's text parts are some 50 MB each


@dataclass(frozen=True, slots=True)
class TextPart:
    """What one file adds to each text encoder; sha256 is that of its content."""

    sha256: str
    towers: tuple[Mapping[str, LoraLayer], Mapping[str, LoraLayer]]


@dataclass(frozen=True, slots=True)
class TextUse:
    """A text part, and the styles asked for that bring it."""

    part: TextPart
    styles: tuple[StyleUse, ...]

    @property
    def weight(self) -> float:
        return sum(style.weight for style in self.styles)

    @property
    def key(self) -> tuple[str, float]:
        return self.part.sha256, self.weight


class TextStyles:
    """Safe to call from any thread: what acts is each thread's own.

    paths: style id to LoRA file; read at every use, so a catalogue may add and drop styles.
    """

    def __init__(self, networks: Networks, towers: Sequence[torch.nn.Module], paths: Mapping[str, Path]) -> None:
        self._networks = networks
        self._towers = tuple(towers)
        self._paths = paths
        self._assignments = [install(tower, EachThread()) for tower in self._towers]
        self._lock = threading.Lock()
        self._parts: OrderedDict[Source, TextPart | None] = OrderedDict()  # least recently used first

    def uses(self, styles: Sequence[StyleUse]) -> tuple[TextUse, ...]:
        """The styles that have a text part, in an order that does not depend on the order asked.

        Raises: InvalidInput for a style that is unknown or whose file does not fit.
        """
        found: dict[str, TextUse] = {}
        for style in styles:
            part = self._part(source_of(style.id, self._paths))
            if part is not None:
                before = found[part.sha256].styles if part.sha256 in found else ()
                found[part.sha256] = TextUse(part, (*before, style))
        return tuple(found[digest] for digest in sorted(found))

    @contextmanager
    def acting(self, uses: Sequence[TextUse]) -> Iterator[None]:
        """Within it these styles act on the text encoders, in this thread alone."""
        if not uses:
            yield
            return
        for i, assignment in enumerate(self._assignments):
            assignment.acting = self._gather(i, uses)
        try:
            yield
        finally:
            for assignment in self._assignments:
                assignment.acting = None

    def _gather(self, i: int, uses: Sequence[TextUse]) -> Acting:
        tower = self._towers[i]
        weight = next(tower.parameters())
        pack = make_pack([use.part.towers[i] for use in uses], weight.dtype).to(weight.device)
        row = Placed(pack, tuple(use.weight for use in uses))
        return replace(Layout().gather([row], weight.device, weight.dtype), shared=True)

    def _part(self, source: Source) -> TextPart | None:
        with self._lock:
            if source in self._parts:
                self._parts.move_to_end(source)
                return self._parts[source]
        part = self._read(source.path)
        with self._lock:
            self._parts[source] = part
            while len(self._parts) > MAX_KEPT:
                self._parts.popitem(last=False)
        return part

    def _read(self, path: Path) -> TextPart | None:
        """None where a file has no text part; whether the rest of such a file fits is for the UNet's bank to say."""
        try:
            keys = list(read_header(path))
        except InvalidInput as error:
            raise InvalidInput("styles", f"{path.name} cannot be read: {error.message}") from error
        if not lora.has_text(keys):
            return None
        data = lora.content(path)
        parts = lora.parse(path.name, data, self._networks)
        if TEXT not in parts and TEXT_2 not in parts:
            return None
        return TextPart(hashlib.sha256(data).hexdigest(), (parts.get(TEXT, {}), parts.get(TEXT_2, {})))
