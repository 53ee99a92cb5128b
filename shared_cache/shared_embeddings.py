"""Embeddings that one process made and others need not: the tier behind each process's own cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import redis

from shared_cache import keys
from shared_cache.outage import Outage
from shared_cache.redis_faults import explain

MAX_VALUE_BYTES = 1 << 20
AWAY_S = 5.0  # how long a store that failed is left alone

PUT = """
-- KEYS: value, index, total. ARGV: key, value, ttl, budget, now. The index names what was put, by time, as key:size.
local function forget(member)
  redis.call('ZREM', KEYS[2], member)
  redis.call('DEL', ARGV[6] .. string.match(member, '^[^:]+'))
  redis.call('DECRBY', KEYS[3], string.match(member, '%d+$'))
end

if redis.call('EXISTS', KEYS[2], KEYS[3]) < 2 then  -- begun, or one of the two was lost
  local total = 0
  for _, known in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do total = total + string.match(known, '%d+$') end
  redis.call('SET', KEYS[3], total)
end
local member = ARGV[1] .. ':' .. #ARGV[2]
if redis.call('ZADD', KEYS[2], ARGV[5], member) == 1 then redis.call('INCRBY', KEYS[3], #ARGV[2]) end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[5] - ARGV[3], 'LIMIT', 0, 16)) do forget(old) end
while tonumber(redis.call('GET', KEYS[3])) > tonumber(ARGV[4]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then break end
  forget(oldest)
end
return 1
"""


class SharedEmbeddings:
    """Bytes by key, kept for ttl_s and up to max_bytes, the oldest leaving first. Safe for threads.

    It may lose anything at any time, and be away: that costs who asks a computation, and is logged once.
    """

    def __init__(
        self, client: redis.Redis, ttl_s: int, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._put = client.register_script(PUT)
        self._lock = threading.Lock()
        self._away_until_s = clock()
        self._outage = Outage("encoded prompts cannot be shared", "encoded prompts are shared", clock=clock)
        self._hits = 0

    @property
    def hits(self) -> int:
        return self._hits

    def get(self, key: str) -> bytes | None:
        found = self._ask(lambda: cast("bytes | None", self._client.get(keys.embedding(key))))
        if found is not None:
            with self._lock:
                self._hits += 1
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keeps the value, unless it is larger than MAX_VALUE_BYTES."""
        if len(value) > min(MAX_VALUE_BYTES, self._max_bytes):
            return
        places = [keys.embedding(key), keys.EMBEDDINGS, keys.EMBEDDINGS_BYTES]
        limits = (self._ttl_s, self._max_bytes, time.time())
        self._ask(lambda: self._put(keys=places, args=[key, value, *limits, keys.EMBEDDING_PREFIX]))

    def _ask(self, call: Callable[[], bytes | None]) -> bytes | None:
        """What the store answers; None while it is left alone, and when it fails."""
        if self._clock() < self._away_until_s:
            return None
        try:
            answer = call()
        except (redis.RedisError, OSError) as error:
            self._away_until_s = self._clock() + AWAY_S
            self._outage.failed(explain(error))
            return None
        self._outage.worked()
        return answer
