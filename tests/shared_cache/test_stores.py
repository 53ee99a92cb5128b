"""Previews, latents and the registry: kept for a while, then gone."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import redis

from core.recipe import StyleUse
from shared_cache import keys
from shared_cache.latents import Latents, pack, unpack
from shared_cache.previews import Previews, StoredPreview
from shared_cache.registry import ReadyWorkers, Registry, new_worker_id
from tests.shared_cache.makers import a_recipe


def test_preview_is_read_back_whole_within_its_hour(client: redis.Redis) -> None:
    previews = Previews(client)
    preview = StoredPreview("ann", a_recipe("テスト 😀", styles=(StyleUse("ink", 1.0),)), b"\x00\xff", b"\xff\xd8")
    previews.put("p1", preview)
    assert previews.get("p1") == preview
    assert previews.get("p2") is None
    assert 3500 < client.ttl(keys.preview("p1")) <= 3600


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_latents_are_bit_equal_when_read_back(client: redis.Redis, dtype: type) -> None:
    latents = Latents(client)
    array: np.ndarray[Any, Any] = np.arange(24).reshape(2, 3, 4).astype(dtype)
    latents.put("r1", {"latents": array, "turned": array.T})
    found = latents.get("r1")
    assert found is not None
    assert np.array_equal(found["latents"], array) and found["latents"].dtype == dtype
    assert np.array_equal(found["turned"], array.T)
    latents.drop("r1")
    assert latents.get("r1") is None


def test_latents_are_gone_when_their_time_is_over(client: redis.Redis) -> None:
    Latents(client, ttl_s=1).put_bytes("r1", b"x")
    assert 0 < client.ttl(keys.latents("r1")) <= 1


def test_packed_arrays_are_the_same_bytes_each_time() -> None:
    arrays = {"a": np.ones((2, 2), np.float32)}
    assert pack(arrays) == pack(arrays)
    assert np.array_equal(unpack(pack(arrays))["a"], arrays["a"])


MODEL = {"model": "storybook", "version": "1"}


def test_ready_counts_are_those_of_living_ready_workers(client: redis.Redis) -> None:
    registry = Registry(client)
    assert registry.ready_counts("storybook@1") == {}
    registry.announce("w1", {**MODEL, "roles": ["preview", "final"], "ready": ["preview"]})
    registry.announce("w2", {**MODEL, "roles": ["decode"], "ready": True})
    registry.announce("w3", {"roles": ["finish"], "ready": False})
    registry.announce("w4", {**MODEL, "roles": ["preview", "final"], "ready": ["preview"]})
    assert registry.ready_counts("storybook@1") == {"preview": 2, "decode": 1}
    assert [worker["id"] for worker in registry.workers()] == ["w1", "w2", "w3", "w4"]
    registry.withdraw("w2")
    assert registry.ready_counts("storybook@1") == {"preview": 2}


def test_worker_with_another_model_counts_for_what_sees_pixels_alone(client: redis.Redis) -> None:
    registry = Registry(client)
    registry.announce("w1", {"model": "storybook", "version": "0", "roles": ["decode", "finish"], "ready": True})
    registry.announce("w2", {"model": "other", "version": "1", "roles": ["preview", "final"], "ready": True})
    assert registry.ready_counts("storybook@1") == {"finish": 1}
    assert registry.ready_counts("storybook@0") == {"decode": 1, "finish": 1}
    assert ReadyWorkers(registry, "final", "other@1").count() == 1
    assert ReadyWorkers(registry, "final", "storybook@1").count() == 0


def test_worker_is_gone_when_it_stops_announcing_itself(client: redis.Redis) -> None:
    registry = Registry(client)
    registry.announce("w1", {**MODEL, "roles": ["final"], "ready": True}, ttl_s=0.05)
    time.sleep(0.08)
    assert registry.workers() == []
    registry.announce("w1", {**MODEL, "roles": ["final"], "ready": True})
    assert registry.ready_counts("storybook@1") == {"final": 1}


def test_workers_of_a_process_that_died_are_withdrawn_and_no_others(client: redis.Redis) -> None:
    registry, mine = Registry(client), new_worker_id()
    assert mine != new_worker_id()
    for worker_id in (mine, f"elsewhere-{os.getpid()}-1", "w1"):
        registry.announce(worker_id, {"roles": ["final"], "ready": True})
    registry.withdraw_process(os.getpid() + 1)
    assert len(registry.workers()) == 3
    registry.withdraw_process(os.getpid())
    assert {worker["id"] for worker in registry.workers()} == {f"elsewhere-{os.getpid()}-1", "w1"}
