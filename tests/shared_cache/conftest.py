"""A real server for all tests of the shared state, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedRedis(tmp_path_factory.mktemp("shared"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def connected(redis_url: str) -> Iterator[redis.Redis]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def client(connected: redis.Redis) -> redis.Redis:
    connected.flushall()
    return connected
