"""Everything a web process holds; made once, passed to every route."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import redis
from starlette.requests import HTTPConnection

from app.asking import ANSWER_TIMEOUT_S
from app.pulses import Pulses
from app.recipes import Recipes
from app.router import Router
from app.standing import Standing, standing
from core.clock import SteadyClock
from core.errors import StartupError
from core.metrics import Metrics
from core.profile import ModelProfile
from core.settings import Settings, redis_url_name
from final_engine.admission import Admission
from sampling.profile import load_profile
from shared_cache.connect import connect, shared_clock
from shared_cache.costs import Costs
from shared_cache.events import Events
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.metrics import Board
from shared_cache.objects import Objects, open_objects
from shared_cache.previews import Previews, kept_previews
from shared_cache.queue import Backlog, Room
from shared_cache.registry import ReadyWorkers, Registry, new_worker_id
from shared_cache.renders import Renders
from styles.catalogue import Catalogue, open_catalogue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """Units: answer_timeout_s is the wait for a preview before it is asked for again."""

    settings: Settings
    redis: redis.Redis
    profile: ModelProfile
    catalogue: Catalogue
    recipes: Recipes
    mailbox: Mailbox
    router: Router
    renders: Renders
    kept: Previews
    events: Events
    pulses: Pulses
    objects: Objects
    registry: Registry
    workers: ReadyWorkers
    clock: SteadyClock
    board: Board
    metrics: Metrics
    process_id: str
    admission: Admission
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    def previewers(self) -> Standing:
        """How the workers stand that paint previews; asks the queue."""
        return standing(self.registry, self.profile.model, ("preview",))


def open_context(settings: Settings, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> Context:
    """Raises: StartupError when the model folder is broken, or the queue or the object store cannot be used."""
    if settings.redis_url is None:
        raise StartupError(
            f"no queue: {redis_url_name()} is not set", "start the app with `firstlight serve`, which brings one"
        )
    profile = load_profile(settings.model)
    catalogue = open_catalogue(settings)
    for problem in catalogue.problems:
        log.warning("styles: %s is left out: %s", problem.file, problem.reason)
    for warning in catalogue.warnings:
        log.warning("styles: %s: %s: %s", warning.file, warning.id, warning.reason)
    client = connect(settings.redis_url)
    clock, registry = shared_clock(client), Registry(client)
    renders, kept = Renders(client), kept_previews(client)
    workers = ReadyWorkers(registry, "final", profile.model)
    return Context(
        settings=settings,
        redis=client,
        profile=profile,
        catalogue=catalogue,
        recipes=Recipes(profile, catalogue),
        mailbox=Mailbox(client, profile.model),
        router=Router(Replies(client)),
        renders=renders,
        kept=kept,
        events=Events(client),
        pulses=Pulses(),
        objects=open_objects(settings, writes=False),
        registry=registry,
        workers=workers,
        clock=clock,
        board=Board(client),
        metrics=Metrics(),
        process_id=new_worker_id(),
        admission=Admission(
            renders=renders,
            previews=Previews(client),
            kept=kept,
            costs=Costs(client, profile.version, clock),
            profile=profile,
            style_ids=catalogue.ids(),
            room=Room(settings.lane_capacity, max(1, int(settings.owner_share * settings.lane_capacity))),
            max_rows=settings.max_final_rows,
            backlog=Backlog(client),
            workers=workers.count,
            clock=clock,
        ),
        answer_timeout_s=answer_timeout_s,
    )


def context_of(connection: HTTPConnection) -> Context:
    """The context of the process that answers this request."""
    context = connection.app.state.context
    assert isinstance(context, Context)
    return context
