"""`firstlight probe`: exit codes that a container's keeper can trust."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from app.cli import app
from benchmarks.network import free_port
from shared_cache.registry import Registry, new_worker_id
from tests.app.conftest import Web

HERE = os.uname().nodename
NOWHERE = "redis://127.0.0.1:1"


def probe(*arguments: str, **environment: str) -> int:
    return CliRunner().invoke(app, ["probe", *arguments], env={"REDIS_URL": None, **environment}).exit_code


@pytest.fixture
def registry(connected: redis.Redis) -> Registry:
    return Registry(connected)


@pytest.mark.parametrize(
    ("announced", "ready", "alive"),
    [
        (None, 1, 1),
        ({"host": HERE, "roles": ["final"], "ready": False}, 1, 0),
        ({"host": HERE, "roles": ["final"], "ready": []}, 1, 0),
        ({"host": HERE, "roles": ["final"], "ready": True}, 0, 0),
    ],
)
def test_worker_is_what_it_announces(
    registry: Registry, redis_url: str, announced: dict[str, Any] | None, ready: int, alive: int
) -> None:
    registry.announce("elsewhere-1-abc", {"host": "elsewhere", "roles": ["final"], "ready": True})
    if announced is not None:
        registry.announce(new_worker_id(), announced)
    assert probe("worker", FIRSTLIGHT_REDIS_URL=redis_url) == ready
    assert probe("worker", "--alive", FIRSTLIGHT_REDIS_URL=redis_url) == alive


def test_queue_that_is_away_kills_no_worker() -> None:
    assert probe("worker", FIRSTLIGHT_REDIS_URL=NOWHERE) == 1
    assert probe("worker", "--alive", FIRSTLIGHT_REDIS_URL=NOWHERE) == 0


def test_worker_without_a_queue_is_a_mistake_of_the_settings() -> None:
    assert probe("worker") == 2


def test_web_is_asked_over_http(web: Web) -> None:
    assert probe("web", FIRSTLIGHT_PORT=web.url.rpartition(":")[2]) == 0
    assert probe("web", FIRSTLIGHT_PORT=str(free_port())) == 1
