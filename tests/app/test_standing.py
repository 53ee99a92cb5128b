"""What people are told they wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from app.standing import Stand, standing
from shared_cache.registry import Registry

MODEL = {"model": "storybook", "version": "1"}
ROLES = ("preview", "finish")


@pytest.mark.parametrize(
    ("workers", "stand", "reason"),
    [
        ([], Stand.WAITING, "waiting for a worker: there is none for preview, finish"),
        ([{**MODEL, "roles": ROLES, "ready": []}], Stand.LOADING, "warming up: the model is loading"),
        ([{**MODEL, "roles": ROLES, "ready": ["preview"]}], Stand.LOADING, "warming up: the model is loading"),
        (
            [{**MODEL, "roles": ["preview"], "ready": True}],
            Stand.WAITING,
            "waiting for a worker: there is none for finish",
        ),
        (
            [{**MODEL, "version": "0", "roles": ROLES, "ready": True}],
            Stand.WAITING,
            "waiting for a worker with storybook@1: there is none for preview",
        ),
        ([{**MODEL, "roles": ROLES, "ready": True}], Stand.READY, ""),
        (
            [{**MODEL, "roles": ROLES, "ready": [], "draining": True}, {**MODEL, "roles": ["finish"], "ready": []}],
            Stand.WAITING,
            "waiting for a worker: there is none for preview",
        ),
    ],
)
def test_reason_is_true_of_the_workers(
    connected: redis.Redis, workers: list[dict[str, object]], stand: Stand, reason: str
) -> None:
    registry = Registry(connected)
    for i, worker in enumerate(workers):
        registry.announce(f"w{i}", worker)
    found = standing(registry, "storybook@1", ROLES)
    assert (found.stand, found.reason) == (stand, reason)


def test_queue_that_cannot_be_reached_is_said_to_be_away(tmp_path: Path) -> None:
    registry = Registry(redis.Redis(unix_socket_path=str(tmp_path / "none.sock")))
    found = standing(registry, "storybook@1", ROLES)
    assert (found.stand, found.reason) == (Stand.AWAY, "the queue cannot be reached")
    assert found.workers == {"preview": 0, "finish": 0}
