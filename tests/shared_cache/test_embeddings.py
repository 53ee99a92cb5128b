"""Embeddings: keyed by content, computed once, within a budget."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from shared_cache.embeddings import ByteLRU, embedding_key

BASE: dict[str, Any] = {
    "model": "1", "tokenizer_version": "1", "dtype": "float32", "styles": [("ab12", 0.8)], "text": "a cat",
}  # fmt: skip


def test_key_is_the_same_for_the_same_content() -> None:
    assert embedding_key(**BASE) == embedding_key(**BASE)
    assert len(embedding_key(**BASE)) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"model": "2"}, {"tokenizer_version": "2"}, {"dtype": "float16"}, {"text": "a cat "}, {"text": ""},
        {"styles": []}, {"styles": [("ab12", 0.9)]}, {"styles": [("cd34", 0.8)]}, {"styles": [("ab12", 0.8)] * 2},
        {"model": "11", "tokenizer_version": ""},
    ],
)  # fmt: skip
def test_key_differs_when_anything_differs(change: dict[str, Any]) -> None:
    assert embedding_key(**{**BASE, **change}) != embedding_key(**BASE)


def test_one_computation_serves_thirty_two_threads() -> None:
    cache: ByteLRU[list[str]] = ByteLRU(1000)
    computed, found = [], []
    gate = threading.Barrier(32)

    def compute() -> list[str]:
        computed.append(1)
        time.sleep(0.05)
        return ["value"]

    def ask() -> None:
        gate.wait()
        found.append(cache.get_or_compute("k", compute, lambda _: 10))

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(computed) == 1
    assert len(found) == 32 and all(value is found[0] for value in found)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.bytes) == (31, 1, 10)


def test_other_keys_do_not_wait_for_a_slow_one() -> None:
    cache: ByteLRU[int] = ByteLRU(1000)
    release = threading.Event()

    def slow() -> int:
        release.wait(5)
        return 1

    thread = threading.Thread(target=cache.get_or_compute, args=("slow", slow, lambda _: 1))
    thread.start()
    assert cache.get_or_compute("quick", lambda: 2, lambda _: 1) == 2
    release.set()
    thread.join()


def test_budget_drops_the_least_recently_used() -> None:
    cache: ByteLRU[str] = ByteLRU(30)
    computed: list[str] = []

    def ask(key: str, size_bytes: int = 10) -> str:
        def compute() -> str:
            computed.append(key)
            return key

        return cache.get_or_compute(key, compute, lambda _: size_bytes)

    for key in ("a", "b", "c", "a", "d"):  # d drops b: a was used after it
        ask(key)
    assert cache.stats().bytes == 30
    ask("a")
    ask("b")
    assert computed == ["a", "b", "c", "d", "b"]
    assert ask("huge", 31) == "huge"  # given, but not kept: it would drop everything
    assert cache.stats().bytes == 30
    cache.clear()
    assert cache.stats().bytes == 0


def test_error_reaches_all_who_wait_and_is_not_kept() -> None:
    cache: ByteLRU[int] = ByteLRU(100)
    gate, errors = threading.Barrier(8), []

    def fail() -> int:
        time.sleep(0.05)
        raise RuntimeError("no")

    def ask() -> None:
        gate.wait()
        try:
            cache.get_or_compute("k", fail, lambda _: 1)
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 8
    assert cache.get_or_compute("k", lambda: 5, lambda _: 1) == 5
