"""What living processes say of themselves; who falls silent is forgotten."""

from __future__ import annotations

import redis

TTL_S = 10.0  # a process speaks every few seconds

LIVING = """
-- KEYS: the set of members. ARGV: what the key of each begins with. Returns member, words, member, words …
local said = {}
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local words = redis.call('GET', ARGV[1] .. member)
  if words then
    said[#said + 1] = member
    said[#said + 1] = words
  else
    redis.call('SREM', KEYS[1], member)  -- one that only paused is added again when it speaks next
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

    def living(self) -> dict[str, str]:
        """What each said last, by name in order."""
        flat = [text.decode() for text in self._living(keys=[self._names], args=[self._prefix])]
        return dict(sorted(zip(flat[::2], flat[1::2], strict=True)))
