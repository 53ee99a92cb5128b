"""Embeddings by content: what the key is made of, and a byte-bounded cache in which each is computed once."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def embedding_key(
    model: str, tokenizer_version: str, dtype: str, styles: Sequence[tuple[str, float]], text: str
) -> str:
    """SHA-256 over all that decides an embedding; a style is (SHA-256 of its file, weight), never its name.

    model: as core.recipe names model and version.
    """
    parts = [model, tokenizer_version, str(dtype), [[digest, float(weight)] for digest, weight in styles], text]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int
    misses: int
    bytes: int


class ByteLRU(Generic[T]):
    """Least recently used values up to a budget of bytes; safe for threads, one computation a key at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._flights: dict[str, Future[T]] = {}
        self._hits = 0
        self._misses = 0
        self._bytes = 0

    def get_or_compute(self, key: str, compute: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """The value of key; those who ask while it is computed wait for that. Errors reach all who wait, unkept.

        Units: size_of returns bytes.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                self._hits += 1
                return self._values[key][0]
            flight = self._flights.get(key)
            if flight is None:
                self._misses += 1
                mine: Future[T] = Future()
                self._flights[key] = mine
            else:
                self._hits += 1
        return flight.result() if flight is not None else self._fly(key, mine, compute, size_of)

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, self._bytes)

    def clear(self) -> None:
        """Forgets all values; the counts stay."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _fly(self, key: str, flight: Future[T], compute: Callable[[], T], size_of: Callable[[T], int]) -> T:
        try:
            value = compute()
            size_bytes = size_of(value)
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flights[key]
            self._keep(key, value, size_bytes)
        flight.set_result(value)
        return value

    def _keep(self, key: str, value: T, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            return
        self._values[key] = (value, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            _, (_, freed_bytes) = self._values.popitem(last=False)
            self._bytes -= freed_bytes
