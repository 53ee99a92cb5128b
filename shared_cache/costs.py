"""The measured cost table, shared so that the web process can predict what a worker will take."""

from __future__ import annotations

import redis

from core.cost import CostTable


class Costs:
    """One table a model version; the last worker to write wins, all measure the same device class."""

    def __init__(self, client: redis.Redis, model_version: str) -> None:
        self._redis = client
        self._key = f"fl:cost:{model_version}"

    def load(self) -> CostTable:
        """The stored table, or the built-in guess when nothing was measured yet."""
        stored = self._redis.get(self._key)
        return CostTable.from_json(stored) if stored else CostTable()

    def save(self, table: CostTable) -> None:
        self._redis.set(self._key, table.to_json())
