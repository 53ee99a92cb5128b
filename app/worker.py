"""A worker process: builds the parts its roles need and runs them until told to stop.

The web process never imports this module: what it builds brings torch with it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import ExitStack
from functools import cached_property
from importlib.metadata import version
from time import perf_counter
from typing import Any

from app.announcer import Announcer
from app.roles import ROLES
from app.stopping import Stopping
from core.cost import CostTable, Part
from core.metrics import Metrics
from core.render import State
from core.settings import Settings
from final_engine.calibrate import Bench, first_samples, identity_of, table_of
from final_engine.cost_file import read_costs
from final_engine.decode_stage import DecodeWork
from final_engine.engine import FinalEngine
from final_engine.finish_stage import FinishWork
from final_engine.glimpse import Glimpses
from final_engine.memory import allowed_rows
from final_engine.routes import Routes, fused_of
from final_engine.stage import Stage
from preview_engine.engine import PreviewEngine
from preview_engine.outbox import Outbox
from sampling import lora
from sampling.bank import Bank
from sampling.compiled import compilations, keep_compiled_in
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.device_loop import DeviceLoop, Engine
from sampling.encode_stage import EncodeStage
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, PoolName, load_model
from sampling.profile import load_profile
from sampling.safety import ImageClassifier
from sampling.threads import use_threads
from sampling.warmup import warm
from shared_cache.connect import connect, connect_cache, shared_clock
from shared_cache.costs import Costs, LiveCosts
from shared_cache.embeddings import ByteLRU
from shared_cache.events import Events
from shared_cache.lanes import Signal, Stream, decode_stage
from shared_cache.latents import Latents
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.metrics import Board
from shared_cache.objects import Objects, open_objects
from shared_cache.previews import Previews, kept_previews
from shared_cache.queue import Lanes
from shared_cache.registry import ReadyWorkers, Registry, new_worker_id
from shared_cache.renders import Renders
from shared_cache.shared_embeddings import SharedEmbeddings
from styles.catalogue import Catalogue, load_catalogue

log = logging.getLogger(__name__)
STAGE_PATIENCE_S = 3.0  # what a stage has at work takes less as a rule, and done it costs nobody an attempt
MEASURES = {"final": (Part.ENCODE, Part.STEP), "decode": (Part.DECODE,), "finish": (Part.SAFETY, Part.PUBLISH)}
TORCH_ROLES = frozenset({"preview", "final", "decode"})


def run_worker(roles: Collection[str], settings: Settings, redis_url: str) -> None:
    """Blocks until SIGTERM, and then until what is at work is done or handed back; SIGINT hands it back at once.

    Raises: StartupError when the model folder, Redis or the object store cannot be used.
    """
    stopping = Stopping(settings.drain_s)
    stopping.listen()
    started_s = perf_counter()
    with Worker(roles, settings, redis_url) as worker:
        log.info("ready for %s after %.1f s", ", ".join(worker.roles), perf_counter() - started_s)
        worker.run(stopping)
    log.info("ended")


class Worker:
    """The parts of one process. Everything that was started is stopped on exit, in reverse order."""

    def __init__(self, roles: Collection[str], settings: Settings, redis_url: str) -> None:
        client = connect(redis_url)
        self.roles = [role for role in ROLES if role in roles]
        self.id = new_worker_id()
        self._settings = settings
        self._redis = client
        self._metrics = Metrics()
        self._classifier = ImageClassifier(settings.nsfw_threshold)
        self._renders = Renders(client)
        self._latents = Latents(client)
        self._signal = Signal(client, *(role for role in ("preview", "final") if role in roles))
        self._embeddings: ByteLRU[Any] = ByteLRU(settings.embedding_cache_mb * 2**20)
        self._shared = _shared_embeddings(settings, redis_url)
        self._loops: dict[str, StepLoop] = {}  # by pool
        self._compiled = 0  # compilations until this worker was ready
        self._engines: dict[str, Engine] = {}  # by pool, in order of priority
        self._banks: list[Bank] = []
        self._stages: list[Stage] = []
        self._parts = ExitStack()
        self._model: Model | None = None
        self._fused = fused_of(settings)
        self._clock = shared_clock(client)
        self._started_s = self._clock()
        self._profile = load_profile(settings.model)
        self._costs = Costs(client, self._profile.version, self._clock)
        self._registry = Registry(client, self._clock)
        self._ready: tuple[str, ...] = ()
        self._announcer = Announcer(
            worker_id=self.id,
            registry=self._registry,
            board=Board(client),
            renders=self._renders,
            metrics=self._metrics,
            describe=self._describe,
            measure=self._measure,
        )

    def __enter__(self) -> Worker:
        # First, since it says at once what is wrong.
        objects = open_objects(self._settings, writes=True) if "finish" in self.roles else None
        self._announcer.start()
        if TORCH_ROLES & set(self.roles):
            use_threads(self._settings.torch_threads)
            self._model = load_model(self._settings.model, self._settings.device, roles=self.roles)
            if self._model.tuning.compiles:
                keep_compiled_in(self._settings.data_dir, os.environ)
            self._start_torch_roles(self._model)
        if objects is not None:
            self._start_finish(objects)
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()
        self._announcer.close()

    def run(self, stopping: Stopping) -> None:
        """Works until asked to stop; then takes nothing more, and goes on with what it has in the time that is left."""
        engines = self._engines
        loop = DeviceLoop(engines, self._signal.wait, perf_counter, self._metrics) if engines else None
        self._compiled = compilations()
        self._tell_ready(self.roles)
        if loop is not None:
            loop.run(stopping.asked)
        stopping.asked.wait()
        self._tell_ready(())
        for stage in self._stages:
            stage.stop_taking()
        if loop is not None:
            loop.drain(stopping.over)
        for stage in self._stages:
            stage.close(max(stopping.left_s, STAGE_PATIENCE_S))

    def _tell_ready(self, roles: Collection[str]) -> None:
        self._ready = tuple(roles)
        self._announcer.changed()

    def _describe(self) -> dict[str, Any]:
        """What the registry tells of this worker; device and precision are None until the model is loaded."""
        profile, model = self._profile, self._model
        return {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "roles": self.roles,
            "ready": list(self._ready),
            "model": profile.id,
            "version": profile.version,
            "buckets": [str(bucket) for bucket in profile.final.buckets],
            "fused": None if self._fused is None else str(self._fused),
            "styles": sorted({name for bank in self._banks for name in bank.resident()}),
            "device": None if model is None else str(model.device),
            "dtype": None if model is None else str(model.dtype).removeprefix("torch."),
            "started_s": self._started_s,
            "program": version("firstlight"),
        }

    def _measure(self) -> None:
        cached = self._embeddings.stats()
        shared = 0 if self._shared is None else self._shared.hits
        self._metrics.cache(cached.hits, cached.misses, cached.bytes, shared)
        if self._ready:
            unserved = {pool: loop.denoiser.unserved for pool, loop in self._loops.items()}
            self._metrics.compiled(compilations() - self._compiled, unserved)

    def _start_torch_roles(self, model: Model) -> None:
        if "preview" in self.roles or "final" in self.roles:
            self._start_engines(model)
        if "decode" in self.roles:
            work = DecodeWork(
                decoder=Decoder(model, "final"),
                renders=self._renders,
                latents=self._latents,
                costs=self._live_costs("decode", self._calibrated),
            )
            self._start_stage("decode", decode_stage(model.profile.model), State.DECODING, work)

    def _start_engines(self, model: Model) -> None:
        """Both pools share the decoder of what is shown before a final is done."""
        catalogue = load_catalogue(model.profile.styles)
        encoders = self._encoders(model, catalogue)
        decoder = Decoder(model, "preview")
        if "preview" in self.roles:
            self._engines["preview"] = self._preview_engine(model, encoders["preview"], decoder, catalogue)
        if "final" in self.roles:
            self._engines["final"] = self._final_engine(model, encoders["final"], decoder, catalogue)

    def _encoders(self, model: Model, catalogue: Catalogue) -> dict[PoolName, Encoder]:
        """One for both pools where they read prompts alike."""
        made: dict[str, Encoder] = {}
        for pool, text in model.texts.items():
            if text.version not in made:
                made[text.version] = Encoder(model, self._embeddings, catalogue.paths(), self._shared, pool)
        return {pool: made[text.version] for pool, text in model.texts.items()}

    def _preview_engine(self, model: Model, encoder: Encoder, decoder: Decoder, catalogue: Catalogue) -> PreviewEngine:
        rows = self._rows(self._settings.max_preview_rows)
        bank = self._bank(model, catalogue, "preview")
        loop = self._loops["preview"] = StepLoop(Denoiser(model, "preview"), bank, rows, perf_counter)
        warm(loop, encoder, decoder, model.profile.preview, list(catalogue.paths()))
        replies = Replies(self._redis)
        outbox = Outbox(
            decoder=decoder,
            classifier=self._classifier,
            previews=Previews(self._redis),
            replies=replies,
            metrics=self._metrics,
            clock=self._clock,
        )
        encode = EncodeStage(encoder, self._signal.notify)
        self._start(outbox)
        self._parts.callback(encode.close)
        return PreviewEngine(
            loop=loop,
            encode=encode,
            mailbox=Mailbox(self._redis, model.profile.model),
            replies=replies,
            outbox=outbox,
            profile=model.profile,
            max_rows=rows,
            metrics=self._metrics,
            clock=self._clock,
        )

    def _final_engine(self, model: Model, encoder: Encoder, decoder: Decoder, catalogue: Catalogue) -> FinalEngine:
        settings, profile = self._settings, model.profile
        rows = self._rows(settings.max_final_rows)
        if self._fused is not None:
            lora.fuse(model.unet("final"), catalogue.paths()[self._fused.id], self._fused.weight)
        bank = self._bank(model, catalogue, "final")
        loop = self._loops["final"] = StepLoop(Denoiser(model, "final"), bank, rows, perf_counter)
        warm(loop, encoder, decoder, profile.final, list(catalogue.paths()))
        stored = self._calibrated or self._first_costs(Bench(model, encoder, loop, decoder, self._classifier), rows)
        glimpses = Glimpses(decoder=decoder, classifier=self._classifier, events=Events(self._redis))
        encode = EncodeStage(encoder, self._signal.notify)
        self._start(glimpses)
        self._parts.callback(encode.close)
        fused = None if self._fused is None else str(self._fused)
        lanes = Lanes(self._redis, [str(bucket) for bucket in profile.final.buckets], self.id, fused, profile.model)
        return FinalEngine(
            loop=loop,
            encode=encode,
            lanes=lanes,
            renders=self._renders,
            kept=kept_previews(self._redis),
            costs=self._live_costs("final", stored),
            batching=settings.batching,
            routes=Routes(self._fused, ReadyWorkers(self._registry, "final", profile.model)),
            glimpses=glimpses,
            metrics=self._metrics,
            latent_scale=model.vae_scale,
            max_rows=rows,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            clock=self._clock,
        )

    def _first_costs(self, bench: Bench, rows: int) -> CostTable:
        """Where nobody has calibrated: a single step says more than a guess."""
        return table_of(first_samples(bench, sorted({2, rows})))

    def _live_costs(self, role: str, stored: CostTable | None) -> LiveCosts:
        """Named by machine and role: what is measured here is true of here."""
        return LiveCosts(self._costs, f"{os.uname().nodename}/{role}", stored or CostTable(), MEASURES[role])

    @cached_property
    def _calibrated(self) -> CostTable | None:
        return None if self._model is None else read_costs(self._settings.data_dir, identity_of(self._model))

    def _rows(self, asked: int) -> int:
        """Network rows that the settings ask for, or fewer where the measured memory has no room for them."""
        return asked if self._room is None else min(asked, self._room)

    @cached_property
    def _room(self) -> int | None:
        return None if self._model is None else allowed_rows(self._settings.data_dir, identity_of(self._model))

    def _bank(self, model: Model, catalogue: Catalogue, pool: PoolName) -> Bank:
        bank = Bank(model, catalogue.paths(), self._settings.style_slots, self._signal.notify, pool)
        self._parts.callback(bank.close)
        self._banks.append(bank)
        return bank

    def _start_finish(self, objects: Objects) -> None:
        work = FinishWork(
            classifier=self._classifier,
            renders=self._renders,
            latents=self._latents,
            kept=kept_previews(self._redis),
            objects=objects,
            costs=self._live_costs("finish", self._calibrated),
            clock=self._clock,
            metrics=self._metrics,
        )
        self._start_stage("finish", "finish", State.CHECKING, work)

    def _start_stage(self, name: str, queue: str, expects: State, work: Any) -> None:
        stage = Stage(
            name=name,
            stream=Stream(self._redis, queue, queue, self.id),
            renders=self._renders,
            expects=expects,
            work=work,
            lease_s=self._settings.lease_s,
            max_attempts=self._settings.max_attempts,
            metrics=self._metrics,
            patience_s=self._settings.publish_patience_s,
        )
        self._stages.append(stage)
        self._start(stage)

    def _start(self, part: Outbox | Glimpses | Stage) -> None:
        part.start()
        self._parts.callback(part.close)


def _shared_embeddings(settings: Settings, redis_url: str) -> SharedEmbeddings | None:
    if settings.embedding_ttl_s == 0:
        return None
    client = connect_cache(settings.cache_url or redis_url)
    return SharedEmbeddings(client, settings.embedding_ttl_s, settings.embedding_store_mb * 2**20)
