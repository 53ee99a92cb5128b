"""Prompts to embeddings, cached and safe to call from any thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from core.errors import NonFinite
from core.recipe import StyleUse
from sampling.clip_reader import ClipReader
from sampling.embedding import Embedding, packed, unpacked
from sampling.flux_reader import FluxReader
from sampling.model import Model, PoolName
from sampling.text import Text
from sampling.text_styles import TextStyles, TextUse
from shared_cache.embeddings import ByteLRU, embedding_key
from shared_cache.shared_embeddings import SharedEmbeddings

log = logging.getLogger(__name__)
NO_STYLES: Mapping[str, Path] = MappingProxyType({})


class Encoder:
    """Prompts to embeddings, as the model's family reads them.

    paths: style id to LoRA file, of which the text-encoder parts act here. shared: where other processes' embeddings
    are, bit for bit as they made them, so that which of them encoded a prompt cannot be seen in a picture. pool: whose
    text encoders, where the pools have their own.
    """

    def __init__(
        self,
        model: Model,
        cache: ByteLRU[Embedding],
        paths: Mapping[str, Path] = NO_STYLES,
        shared: SharedEmbeddings | None = None,
        pool: PoolName | None = None,
    ) -> None:
        self._model = model
        self._text = model.text(pool)
        self._cache = cache
        self._shared = shared
        self._reader = reader_of(self._text)
        self._styles = TextStyles(model.networks(pool), [tower.encoder for tower in self._text.towers], paths)

    @property
    def negatives(self) -> bool:
        """Whether a negative prompt is ever read."""
        return self._text.negatives

    def encode(self, prompt: str, styles: tuple[StyleUse, ...] = ()) -> Embedding:
        """The embedding of a prompt, from the cache where it is known.

        Part of the key are those styles alone that act on the text encoders, by their files' content and weight.
        Raises: InvalidInput when a written weight is not finite, a style is unknown or its file does not fit; NonFinite
        for what a style may give.
        """
        model, uses = self._model, self._styles.uses(styles)
        acting = [use.key for use in uses]
        key = embedding_key(model.profile.model, self._text.version, str(model.dtype), acting, prompt)
        return self._cache.get_or_compute(key, lambda: self._obtain(key, prompt, uses), lambda made: made.nbytes)

    def _obtain(self, key: str, prompt: str, uses: Sequence[TextUse]) -> Embedding:
        """Another process's where there is one, else made here and given to the others."""
        if self._shared is None:
            return self._styled(prompt, uses)
        if (stored := self._shared.get(key)) is not None:
            try:
                return unpacked(stored, self._model.device)
            except (ValueError, KeyError, SafetensorError) as error:
                log.warning("a shared embedding cannot be read, it is made anew: %r", error)
        made = self._styled(prompt, uses)
        self._shared.put(key, packed(made))
        return made

    def _styled(self, prompt: str, uses: Sequence[TextUse]) -> Embedding:
        with self._styles.acting(uses):
            made = self._encode(prompt)
        if not made.finite:
            acted = [style for use in uses for style in use.styles]
            raise NonFinite.of("the text encoders gave values that are not finite", acted)
        return made

    def _encode(self, prompt: str) -> Embedding:
        return self._reader.read(prompt)


def reader_of(text: Text) -> ClipReader | FluxReader:
    """How the text encoders of a family are asked."""
    return ClipReader(text) if text.length is None else FluxReader(text, text.length)
