"""The decode stage: latents in flight become pixels in flight."""

from __future__ import annotations

from time import perf_counter

import torch

from core.cost import Part
from core.errors import NonFinite
from core.render import State
from sampling.decode import Decoder
from shared_cache.costs import LiveCosts
from shared_cache.lanes import Entry
from shared_cache.latents import Latents, pack, unpack
from shared_cache.renders import Record, Renders


class DecodeWork:
    def __init__(self, *, decoder: Decoder, renders: Renders, latents: Latents, costs: LiveCosts) -> None:
        self._decoder = decoder
        self._renders = renders
        self._latents = latents
        self._costs = costs

    def __call__(self, entry: Entry, record: Record) -> None:
        """Raises: LookupError when the latents are gone, NonFinite when they cannot be decoded."""
        started_s = perf_counter()
        stored = self._latents.get_bytes(record.id)
        if stored is None:
            raise LookupError("the latents were gone before they could be decoded; render it again")
        latents = torch.from_numpy(unpack(stored)["latents"])
        try:
            pixels = self._decoder.decode(latents)
        except NonFinite as error:
            raise NonFinite.of(error.message, record.recipe.styles) from error
        decode_s = perf_counter() - started_s
        self._renders.hand_over(
            entry,
            record.attempt,
            "finish",
            State.CHECKING,
            record.id,
            pack({"pixels": pixels}),
            {"timings_ms": {"decode": round(1000 * decode_s, 1)}},
        )
        self._costs.observe(Part.DECODE, decode_s, len(latents), record.bucket)
