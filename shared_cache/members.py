"""What living processes say of themselves; who falls silent is forgotten."""

from __future__ import annotations

from typing import cast

import redis

from shared_cache import keys

TTL_S = 10.0  # a process speaks every few seconds
LOST_S = 60
MOST_LOST = 100

LIVING = """
-- KEYS: the set of members, that of the lost. ARGV: what the key of each begins with, how long lost ones are named.
-- Returns member, words, member, words …
local said = {}
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local words = redis.call('GET', ARGV[1] .. member)
  if words then
    said[#said + 1] = member
    said[#said + 1] = words
  else
    redis.call('SMOVE', KEYS[1], KEYS[2], member)  -- one that only paused is added again when it speaks next
    redis.call('EXPIRE', KEYS[2], ARGV[2])
  end
end
return said
"""


class Members:
    """A set of names and a key with a time to live for each. Prefix: what that key begins with."""

    def __init__(self, client: redis.Redis, names: str, prefix: str) -> None:
        self._client = client
        self._names = names
        self._prefix = prefix
        self._living = client.register_script(LIVING)

    def say(self, name: str, words: str, ttl_s: float = TTL_S) -> None:
        """Replaces what was said before; forgotten after ttl_s."""
        with self._client.pipeline() as pipe:
            pipe.set(self._prefix + name, words, px=max(1, int(ttl_s * 1000)))
            pipe.sadd(self._names, name)
            pipe.execute()

    def leave(self, name: str) -> None:
        with self._client.pipeline() as pipe:
            pipe.delete(self._prefix + name)
            pipe.srem(self._names, name)
            pipe.execute()

    def lost(self) -> list[str]:
        """Those that fell silent without leave in the last minute; each is named once, to one who asks."""
        found = cast("list[bytes]", self._client.spop(keys.lost(self._names), MOST_LOST))
        return sorted(name.decode() for name in found)

    def clear(self) -> None:
        """Forgets everybody."""
        self._client.delete(*(self._prefix + name for name in self.living()), self._names, keys.lost(self._names))

    def living(self) -> dict[str, str]:
        """What each said last, by name in order."""
        places = [self._names, keys.lost(self._names)]
        flat = [text.decode() for text in self._living(keys=places, args=[self._prefix, LOST_S])]
        return dict(sorted(zip(flat[::2], flat[1::2], strict=True)))
