"""The tier of embeddings behind the processes: it keeps within bounds, and nobody depends on it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from core.errors import StartupError
from shared_cache import keys
from shared_cache.connect import connect_cache
from shared_cache.shared_embeddings import AWAY_S, MAX_VALUE_BYTES, SharedEmbeddings
from tests.sampling.conftest import Clock


def kept(client: redis.Redis) -> int:
    """Bytes that the index says are there, which must be those that are."""
    names = [member.decode().partition(":")[0] for member in client.zrange(keys.EMBEDDINGS, 0, -1)]
    there = sum(client.strlen(keys.embedding(name)) for name in names)
    assert int(client.get(keys.EMBEDDINGS_BYTES) or 0) == there
    assert len(client.keys(keys.EMBEDDING_PREFIX + "*")) == len(names)
    return there


def test_what_one_puts_another_gets(client: redis.Redis) -> None:
    one, other = SharedEmbeddings(client, 60, 1000), SharedEmbeddings(client, 60, 1000)
    assert other.get("k") is None
    one.put("k", b"value")
    assert other.get("k") == b"value"
    assert (one.hits, other.hits) == (0, 1)
    assert 0 < client.ttl(keys.embedding("k")) <= 60


def test_oldest_leave_when_the_budget_is_spent(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 60, 1000)
    for name in ("a", "b", "c", "b"):
        store.put(name, bytes(400))
        time.sleep(0.002)
    assert [store.get(name) is not None for name in ("a", "b", "c")] == [False, True, True]
    assert kept(client) == 800


def test_value_of_another_size_under_the_same_name_is_counted_right(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 60, 1000)
    store.put("a", bytes(100))
    store.put("a", bytes(300))
    for name in ("b", "c", "d"):
        store.put(name, bytes(300))
    assert int(client.get(keys.EMBEDDINGS_BYTES) or 0) <= 1000


def test_what_is_too_large_is_not_kept(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 60, 2 * MAX_VALUE_BYTES)
    store.put("k", bytes(MAX_VALUE_BYTES + 1))
    assert store.get("k") is None and kept(client) == 0


def test_what_has_run_out_is_forgotten_by_the_index_too(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 1, 1000)
    store.put("old", bytes(10))
    time.sleep(1.1)
    store.put("new", bytes(20))
    assert kept(client) == 20


def test_lost_index_begins_anew(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 60, 100)
    store.put("a", bytes(80))
    client.delete(keys.EMBEDDINGS)
    store.put("b", bytes(80))
    store.put("c", bytes(80))
    assert store.get("c") is not None


def test_lost_total_is_counted_again(client: redis.Redis) -> None:
    store = SharedEmbeddings(client, 60, 100)
    for key in "abc":
        store.put(key, b"x" * 30)
    client.delete(keys.EMBEDDINGS_BYTES)
    store.put("c", b"x" * 30)  # known already, so it adds nothing
    assert store.get("a") and kept(client) == 90
    store.put("d", b"x" * 30)
    assert store.get("a") is None and store.get("d") and kept(client) == 90


def test_outage_costs_a_lookup_now_and_then_and_is_told_once(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, asked = Clock(), []
    store = SharedEmbeddings(client, 60, 1000, clock)
    get = client.get

    def away(name: str) -> bytes | None:
        asked.append(name)
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(client, "get", away)
    for _ in range(5):
        assert store.get("k") is None
        store.put("k", b"value")
    clock.now_s += AWAY_S
    assert store.get("k") is None
    assert len(asked) == 2 and len(caplog.records) == 1 and "refused" in caplog.text
    monkeypatch.setattr(client, "get", get)
    clock.now_s += AWAY_S
    assert store.get("k") is None
    store.put("k", b"value")
    assert store.get("k") == b"value"


def test_server_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    started_s = time.monotonic()
    store = SharedEmbeddings(connect_cache(f"unix://{tmp_path}/none.sock"), 60, 1000)
    assert store.get("k") is None
    assert time.monotonic() - started_s < 5


def test_wrong_url_is_told() -> None:
    with pytest.raises(StartupError, match="FIRSTLIGHT_CACHE_URL"):
        connect_cache("localhost:6379")
