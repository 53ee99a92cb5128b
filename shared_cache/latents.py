"""Arrays in flight between stages, as safetensors bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import redis
from safetensors.numpy import load, save

from shared_cache import keys

Arrays = Mapping[str, np.ndarray[Any, Any]]


def pack(arrays: Arrays) -> bytes:
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def unpack(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    return cast(dict[str, np.ndarray[Any, Any]], load(data))


class Latents:
    """Payloads under `fl:latents:{key}`; Renders.hand_over writes them too, as raw bytes."""

    def __init__(self, client: redis.Redis, ttl_s: int = 3600) -> None:
        self._client = client
        self._ttl_s = ttl_s

    def put(self, key: str, arrays: Arrays) -> None:
        self.put_bytes(key, pack(arrays))

    def get(self, key: str) -> dict[str, np.ndarray[Any, Any]] | None:
        data = self.get_bytes(key)
        return None if data is None else unpack(data)

    def put_bytes(self, key: str, data: bytes) -> None:
        self._client.set(keys.latents(key), data, ex=self._ttl_s)

    def get_bytes(self, key: str) -> bytes | None:
        return cast("bytes | None", self._client.get(keys.latents(key)))

    def drop(self, key: str) -> None:
        self._client.delete(keys.latents(key))
