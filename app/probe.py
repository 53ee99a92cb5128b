"""`firstlight probe`: whether the process of this machine or container is well, as an exit code for its keeper."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import httpx
import typer
from redis.exceptions import RedisError

from app.output import print_json, tells
from core.errors import StartupError, Unavailable
from core.settings import Settings, load_settings, redis_url_name
from shared_cache.connect import connect
from shared_cache.registry import Registry, ready_of

TIMEOUT_S = 5.0


class What(StrEnum):
    WEB = "web"
    WORKER = "worker"


@tells
def probe(
    what: Annotated[What, typer.Argument(help="web: /healthz of this machine; worker: what it says in Redis")],
    alive: Annotated[bool, typer.Option(help="A worker that still loads, or cannot be asked for, will do")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Exit 0 if this machine's process is well, for health checks of containers.

    A restart helps no worker whose Redis is away; so --alive says no only when Redis answers and knows of none here.
    """
    settings = load_settings()
    fine = _web_answers(settings) if what is What.WEB else _worker_stands(settings, alive)
    if not fine:
        raise Unavailable(f"the {what.value} process of this machine is not {'alive' if alive else 'ready'}")
    if as_json:
        print_json({"what": what.value, "ok": True})


def _web_answers(settings: Settings) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{settings.port}/healthz", timeout=TIMEOUT_S).status_code == 200
    except httpx.HTTPError:
        return False


def _worker_stands(settings: Settings, alive: bool) -> bool:
    if settings.redis_url is None:
        raise StartupError(
            f"no queue: {redis_url_name()} is not set",
            "set it as for the worker; a worker of the built-in queue is asked for with `firstlight probe web`",
        )
    try:
        with connect(settings.redis_url) as client:
            found = [worker for worker in Registry(client).workers() if worker["host"] == os.uname().nodename]
    except (RedisError, StartupError):  # which of the two depends on when it went away
        return alive
    return bool(found) if alive else any(ready_of(worker) for worker in found)
