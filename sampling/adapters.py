"""Styles on one UNet: loaded when first used, switched at step boundaries, never fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from core.errors import InvalidInput
from core.recipe import StyleUse
from sampling import lora

MAX_LOADED = 16


Source = tuple[Path, int, int, int, int]  # path, inode, size, and when content and inode changed last


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An adapter on the UNet and the file it came from; a file that changed is loaded anew."""

    name: str
    source: Source


class Adapters:
    """Owned by the thread that runs the UNet; nobody else switches adapters on it.

    paths: style id to LoRA file; read at every use, so a catalogue may add and drop styles.
    """

    def __init__(self, unet: UNet2DConditionModel, paths: Mapping[str, Path]) -> None:
        self._unet = unet
        self._paths = paths
        self._loaded: dict[str, _Loaded] = {}  # by style id, least recently used first
        self._active: tuple[StyleUse, ...] = ()
        self._serial = 0

    @property
    def active(self) -> tuple[StyleUse, ...]:
        return self._active

    def activate(self, styles: tuple[StyleUse, ...]) -> None:
        """Makes these styles act and no others; with none the UNet is bit-equal to its base.

        Raises: InvalidInput for a style that is unknown or whose file does not fit; the UNet is then as without styles.
        """
        if styles == self._active and all(self._is_current(use.id) for use in styles):
            return
        self._active = ()
        if self._loaded:
            self._unet.disable_lora()
        if not styles:
            return
        names = [self._name(use.id) for use in styles]
        self._unet.set_adapters(names, [use.weight for use in styles])
        self._unet.enable_lora()
        self._active = styles
        self._evict()

    def _name(self, style_id: str) -> str:
        source = self._source(style_id)
        known = self._loaded.pop(style_id, None)
        if known is None or known.source != source:
            if known is not None:
                lora.detach(self._unet, known.name)
            known = _Loaded(self._attach(source[0]), source)
        self._loaded[style_id] = known
        return known.name

    def _is_current(self, style_id: str) -> bool:
        """Whether what acts is still what its file holds; a file that went away does not end what runs with it."""
        try:
            return self._loaded[style_id].source == self._source(style_id)
        except InvalidInput:
            return True

    def _source(self, style_id: str) -> Source:
        path = self._paths.get(style_id)
        if path is None:
            raise InvalidInput("styles", f"style {style_id} is not installed")
        try:
            stat = path.stat()
        except OSError as error:
            raise InvalidInput("styles", f"style {style_id} cannot be read: {error.strerror}") from error
        return path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def _attach(self, path: Path) -> str:
        self._serial += 1
        name = f"style{self._serial}"
        try:
            lora.attach(self._unet, path, name)
        except InvalidInput:
            if self._loaded:
                self._unet.disable_lora()
            raise
        return name

    def _evict(self) -> None:
        using = {use.id for use in self._active}
        spare = [style_id for style_id in self._loaded if style_id not in using]
        for style_id in spare[: max(0, len(self._loaded) - MAX_LOADED)]:
            lora.detach(self._unet, self._loaded.pop(style_id).name)
