"""A worker process: the parts that its roles need, running until it is told to stop.

The web process never imports this module, and it brings no torch: app.torch_roles does, where a role needs it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.announcer import Announcer
from app.roles import ROLES
from app.stopping import Stopping
from app.worker_parts import Shared
from core.metrics import Metrics
from core.render import State
from core.settings import Settings
from final_engine.finish_stage import FinishWork
from final_engine.routes import fused_of
from sampling.device_loop import DeviceLoop, Engine
from sampling.profile import load_profile
from sampling.safety import ImageClassifier
from shared_cache.connect import connect, shared_clock
from shared_cache.costs import Costs
from shared_cache.lanes import Signal
from shared_cache.latents import Latents
from shared_cache.metrics import Board
from shared_cache.objects import Objects, open_objects
from shared_cache.previews import kept_previews
from shared_cache.registry import Registry, new_worker_id
from shared_cache.renders import Renders

if TYPE_CHECKING:
    from app.torch_roles import TorchRoles

log = logging.getLogger(__name__)
STAGE_PATIENCE_S = 3.0  # what a stage has at work takes less as a rule, and done it costs nobody an attempt
TORCH_ROLES = frozenset({"preview", "final", "decode"})


def run_worker(roles: Collection[str], settings: Settings, redis_url: str) -> None:
    """Blocks until SIGTERM, and then until what is at work is done or handed back; SIGINT hands it back at once.

    Raises: StartupError when the model folder, Redis or the object store cannot be used.
    """
    stopping = Stopping(settings.drain_s, loading=True)
    stopping.listen()
    started_s = perf_counter()
    with Worker(roles, settings, redis_url) as worker:
        stopping.loading = False
        log.info("ready for %s after %.1f s", ", ".join(worker.roles), perf_counter() - started_s)
        worker.run(stopping)
    log.info("ended")


class Worker:
    """The parts of one process. Everything that was started is stopped on exit, in reverse order."""

    def __init__(self, roles: Collection[str], settings: Settings, redis_url: str) -> None:
        client = connect(redis_url)
        clock = shared_clock(client)
        profile = load_profile(settings.model)
        self.roles = [role for role in ROLES if role in roles]
        self._redis_url = redis_url
        self._signal = Signal(client, *(role for role in ("preview", "final") if role in roles))
        self.shared = Shared(
            worker_id=new_worker_id(),
            settings=settings,
            redis=client,
            clock=clock,
            metrics=Metrics(),
            classifier=ImageClassifier(settings.nsfw_threshold),
            renders=Renders(client),
            latents=Latents(client),
            costs=Costs(client, profile.version, clock),
            registry=Registry(client, clock),
            profile=profile,
            fused=fused_of(settings),
        )
        self._torch: TorchRoles | None = None
        self._started_s = clock()
        self._ready: tuple[str, ...] = ()
        self._draining = False
        self._announcer = Announcer(
            worker_id=self.shared.worker_id,
            registry=self.shared.registry,
            board=Board(client),
            renders=self.shared.renders,
            metrics=self.shared.metrics,
            describe=self._describe,
            measure=self._measure,
        )

    def __enter__(self) -> Worker:
        try:
            self._start()
        except BaseException:  # also where it is told to end while the model loads
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        # First, since it says at once what is wrong.
        objects = open_objects(self.shared.settings, writes=True) if "finish" in self.roles else None
        self._announcer.start()
        if TORCH_ROLES & set(self.roles):
            # Read when torch is loaded: threads that spin while they wait starve the other stages.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            from app.torch_roles import TorchRoles

            self._torch = TorchRoles(self.roles, self.shared, self._signal, self._redis_url)
        if objects is not None:
            self._start_finish(objects)

    def __exit__(self, *_: object) -> None:
        self.shared.parts.close()
        self._announcer.close()

    def run(self, stopping: Stopping) -> None:
        """Works until asked to stop; then takes nothing more, and goes on with what it has in the time that is left."""
        engines: dict[str, Engine] = {} if self._torch is None else self._torch.engines
        loop = DeviceLoop(engines, self._signal.wait, perf_counter, self.shared.metrics) if engines else None
        self._tell_ready(self.roles)
        if loop is not None:
            loop.run(stopping.asked)
        stopping.asked.wait()
        self._draining = True
        self._tell_ready(())
        for stage in self.shared.stages:
            stage.stop_taking()
        if loop is not None:
            loop.drain(stopping.over)
        for stage in self.shared.stages:
            stage.close(max(stopping.left_s, STAGE_PATIENCE_S))

    def _tell_ready(self, roles: Collection[str]) -> None:
        self._ready = tuple(roles)
        self._announcer.changed()

    def _describe(self) -> dict[str, Any]:
        """What the registry tells of this worker; device and precision are None until the model is loaded."""
        profile, fused, torch = self.shared.profile, self.shared.fused, self._torch
        return {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "roles": self.roles,
            "ready": list(self._ready),
            "draining": self._draining,
            "model": profile.id,
            "version": profile.version,
            "buckets": [str(bucket) for bucket in profile.final.buckets],
            "fused": None if fused is None else str(fused),
            "styles": [] if torch is None else sorted(torch.resident),
            "installed": [] if torch is None else sorted(torch.installed),
            "device": None if torch is None else str(torch.model.device),
            "dtype": None if torch is None else str(torch.model.dtype).removeprefix("torch."),
            "started_s": self._started_s,
            "program": version("firstlight"),
        }

    def _measure(self) -> None:
        if self._torch is not None:
            self._torch.measure()

    def _start_finish(self, objects: Objects) -> None:
        shared = self.shared
        work = FinishWork(
            classifier=shared.classifier,
            renders=shared.renders,
            latents=shared.latents,
            kept=kept_previews(shared.redis),
            objects=objects,
            costs=shared.live_costs("finish", None if self._torch is None else self._torch.calibrated),
            clock=shared.clock,
            metrics=shared.metrics,
        )
        shared.start_stage("finish", "finish", State.CHECKING, work)
