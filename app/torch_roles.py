"""The roles of a worker that compute with torch: both pools and the decode stage.

Only a worker with such a role imports this module: torch and what stands on it take ten seconds and 400 MB.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cached_property
from time import perf_counter
from typing import Any

from app.worker_parts import Shared
from core.cost import CostTable
from core.render import State
from core.settings import Settings
from final_engine.calibrate import Bench, first_samples, identity_of, table_of
from final_engine.cost_file import read_costs
from final_engine.decode_stage import DecodeWork
from final_engine.engine import FinalEngine
from final_engine.glimpse import Glimpses
from final_engine.memory import allowed_rows
from final_engine.routes import Routes
from preview_engine.engine import PreviewEngine
from preview_engine.outbox import Outbox
from sampling import lora
from sampling.bank import Bank
from sampling.compiled import compilations, keep_compiled_in
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.device_loop import Engine
from sampling.encode_stage import EncodeStage
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import PoolName, load_model
from sampling.threads import use_threads
from sampling.warmup import warm
from shared_cache.connect import connect_cache
from shared_cache.embeddings import ByteLRU
from shared_cache.events import Events
from shared_cache.lanes import Signal, decode_stage
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.previews import Previews, kept_previews
from shared_cache.queue import Lanes
from shared_cache.registry import ReadyWorkers
from shared_cache.shared_embeddings import SharedEmbeddings
from styles.catalogue import Catalogue, open_catalogue


class TorchRoles:
    """Loads the model and starts what the roles need of it. engines: by pool, in order of priority."""

    def __init__(self, roles: Collection[str], shared: Shared, signal: Signal, redis_url: str) -> None:
        self._shared = shared
        self._settings = settings = shared.settings
        self._signal = signal
        self._cache: ByteLRU[Any] = ByteLRU(settings.embedding_cache_mb * 2**20)
        self._store = _shared_embeddings(settings, redis_url)
        self._banks: list[Bank] = []
        self._catalogue: Catalogue | None = None
        self.engines: dict[str, Engine] = {}
        use_threads(settings.torch_threads)
        self._loops: dict[str, StepLoop] = {}  # by pool
        self.model = load_model(settings.model, settings.device, roles=roles)
        if self.model.tuning.compiles:
            keep_compiled_in(settings.data_dir, os.environ)
        if "preview" in roles or "final" in roles:
            self._start_engines(roles)
        if "decode" in roles:
            self._start_decode()
        self._compiled = compilations()  # until this worker was ready

    @property
    def installed(self) -> frozenset[str]:
        """The styles that it has files of; none where no role of it paints."""
        return frozenset() if self._catalogue is None else self._catalogue.ids()

    @property
    def resident(self) -> set[str]:
        """The styles at hand."""
        return {name for bank in self._banks for name in bank.resident()}

    def measure(self) -> None:
        """Brings the metrics up to date."""
        cached = self._cache.stats()
        hits = 0 if self._store is None else self._store.hits
        self._shared.metrics.cache(cached.hits, cached.misses, cached.bytes, hits)
        unserved = {pool: loop.denoiser.unserved for pool, loop in self._loops.items()}
        self._shared.metrics.compiled(compilations() - self._compiled, unserved)

    @cached_property
    def calibrated(self) -> CostTable | None:
        return read_costs(self._settings.data_dir, identity_of(self.model))

    @cached_property
    def _room(self) -> int | None:
        return allowed_rows(self._settings.data_dir, identity_of(self.model))

    def _start_decode(self) -> None:
        shared = self._shared
        work = DecodeWork(
            decoder=Decoder(self.model, "final"),
            renders=shared.renders,
            latents=shared.latents,
            costs=shared.live_costs("decode", self.calibrated),
        )
        shared.start_stage("decode", decode_stage(self.model.profile.model), State.DECODING, work)

    def _start_engines(self, roles: Collection[str]) -> None:
        """Both pools share the decoder of what is shown before a final is done."""
        catalogue = self._catalogue = open_catalogue(self._settings)
        encoders = self._encoders(catalogue)
        decoder = Decoder(self.model, "preview")
        if "preview" in roles:
            self.engines["preview"] = self._preview_engine(encoders["preview"], decoder, catalogue)
        if "final" in roles:
            self.engines["final"] = self._final_engine(encoders["final"], decoder, catalogue)

    def _encoders(self, catalogue: Catalogue) -> dict[PoolName, Encoder]:
        """One for both pools where they read prompts alike."""
        made: dict[str, Encoder] = {}
        for pool, text in self.model.texts.items():
            if text.version not in made:
                made[text.version] = Encoder(self.model, self._cache, catalogue.paths(), self._store, pool)
        return {pool: made[text.version] for pool, text in self.model.texts.items()}

    def _preview_engine(self, encoder: Encoder, decoder: Decoder, catalogue: Catalogue) -> PreviewEngine:
        shared, profile = self._shared, self.model.profile
        rows = self._rows(self._settings.max_preview_rows)
        bank = self._bank(catalogue, "preview")
        loop = self._loops["preview"] = StepLoop(Denoiser(self.model, "preview"), bank, rows, perf_counter)
        warm(loop, encoder, decoder, profile.preview, list(catalogue.paths()))
        replies = Replies(shared.redis)
        outbox = Outbox(
            decoder=decoder,
            classifier=shared.classifier,
            previews=Previews(shared.redis),
            replies=replies,
            metrics=shared.metrics,
            clock=shared.clock,
        )
        encode = EncodeStage(encoder, self._signal.notify)
        ready = ReadyWorkers(shared.registry, "preview", profile.model)
        shared.start(outbox)
        shared.parts.callback(encode.close)
        return PreviewEngine(
            loop=loop,
            encode=encode,
            mailbox=Mailbox(shared.redis, profile.model, catalogue.ids(), ready),
            replies=replies,
            outbox=outbox,
            profile=profile,
            max_rows=rows,
            metrics=shared.metrics,
            clock=shared.clock,
        )

    def _final_engine(self, encoder: Encoder, decoder: Decoder, catalogue: Catalogue) -> FinalEngine:
        shared, settings, model, profile = self._shared, self._settings, self.model, self.model.profile
        rows = self._rows(settings.max_final_rows)
        if shared.fused is not None:
            lora.fuse(model.network("final"), catalogue.paths()[shared.fused.id], shared.fused.weight)
        bank = self._bank(catalogue, "final")
        loop = self._loops["final"] = StepLoop(Denoiser(model, "final"), bank, rows, perf_counter)
        warm(loop, encoder, decoder, profile.final, list(catalogue.paths()))
        stored = self.calibrated or _first_costs(Bench(model, encoder, loop, decoder, shared.classifier), rows)
        glimpses = Glimpses(decoder=decoder, classifier=shared.classifier, events=Events(shared.redis))
        encode = EncodeStage(encoder, self._signal.notify)
        shared.start(glimpses)
        shared.parts.callback(encode.close)
        fused = None if shared.fused is None else str(shared.fused)
        buckets = [str(bucket) for bucket in profile.final.buckets]
        ready = ReadyWorkers(shared.registry, "final", profile.model)
        return FinalEngine(
            loop=loop,
            encode=encode,
            lanes=Lanes(shared.redis, buckets, shared.worker_id, fused, profile.model),
            renders=shared.renders,
            kept=kept_previews(shared.redis),
            costs=shared.live_costs("final", stored),
            batching=settings.batching,
            routes=Routes(shared.fused, ready, catalogue.ids()),
            glimpses=glimpses,
            metrics=shared.metrics,
            latent_scale=model.vae_scale,
            max_rows=rows,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            clock=shared.clock,
        )

    def _rows(self, asked: int) -> int:
        """Network rows that the settings ask for, or fewer where the measured memory has no room for them."""
        return asked if self._room is None else min(asked, self._room)

    def _bank(self, catalogue: Catalogue, pool: PoolName) -> Bank:
        bank = Bank(self.model, catalogue.paths(), self._settings.style_slots, self._signal.notify, pool)
        self._shared.parts.callback(bank.close)
        self._banks.append(bank)
        return bank


def _first_costs(bench: Bench, rows: int) -> CostTable:
    """Where nobody has calibrated: a single step says more than a guess."""
    return table_of(first_samples(bench, sorted({2, rows})))


def _shared_embeddings(settings: Settings, redis_url: str) -> SharedEmbeddings | None:
    if settings.embedding_ttl_s == 0:
        return None
    client = connect_cache(settings.cache_url or redis_url)
    return SharedEmbeddings(client, settings.embedding_ttl_s, settings.embedding_store_mb * 2**20)
