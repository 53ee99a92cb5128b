"""What processes publish of their metrics, and a look at what waits, for whoever answers /metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from core.profile import Bucket
from shared_cache import keys
from shared_cache.lanes import FINAL_GROUP, STANDARD, decode_stage
from shared_cache.members import TTL_S, Members

MAILBOX = "mailbox"

LOOK = """
-- KEYS: streams. ARGV: the group of each. Answers [waiting, held, milliseconds of the oldest waiting] of each.
-- Entries may be held in any order, so the oldest that waits is the first that nobody holds.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local looks = {}
for index, stream in ipairs(KEYS) do
  local summary = redis.pcall('XPENDING', stream, ARGV[index])  -- an error where there is no stream or no group yet
  local count, held, oldest_ms = summary.err and 0 or summary[1], {}, 0
  if count > 0 then
    for _, entry in ipairs(redis.call('XPENDING', stream, ARGV[index], '-', '+', count)) do held[entry[1]] = true end
  end
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', count + 1)) do
    if not held[entry[1]] then
      oldest_ms = math.max(0, now_ms - tonumber(string.match(entry[1], '%d+')))
      break
    end
  end
  looks[index] = {math.max(0, redis.call('XLEN', stream) - count), count, oldest_ms}
end
return looks
"""


@dataclass(frozen=True, slots=True)
class Depth:
    """One lane. Units: oldest_s is how long the oldest waiting entry has waited, 0 when none waits."""

    pool: str
    lane: str
    waiting: int
    held: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """texts holds what each living process published last, by its id."""

    texts: dict[str, str]
    depths: list[Depth]
    open_renders: int


class Board:
    """Where processes hang out their metrics, in the text format."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._members = Members(client, keys.METERED, keys.METRICS_PREFIX)
        self._look = client.register_script(LOOK)

    def publish(self, process_id: str, text: str, ttl_s: float = TTL_S) -> None:
        self._members.say(process_id, text, ttl_s)

    def withdraw(self, process_id: str) -> None:
        self._members.leave(process_id)

    def look(self, buckets: Sequence[str | Bucket], model: str, priorities: Sequence[str] = (STANDARD,)) -> Look:
        """Everything that was published, and how deep these buckets' lanes and the model's mailbox and stages are."""
        lanes = [(f"{priority}:{bucket}", keys.lane(priority, bucket)) for priority in priorities for bucket in buckets]
        places = [("final", lane, stream) for lane, stream in lanes]
        stages = {"decode": decode_stage(model), "finish": "finish"}
        places += [(stage, stage, keys.stream(name)) for stage, name in stages.items()]
        groups = [FINAL_GROUP] * len(lanes) + list(stages.values())
        ready = keys.mail_ready(model)
        with self._client.pipeline(transaction=False) as pipe:
            self._look(keys=[stream for *_, stream in places], args=groups, client=pipe)
            pipe.zcard(ready)
            pipe.zrange(ready, 0, 0, withscores=True)
            pipe.time()
            pipe.zcard(keys.OPEN)
            looks, mail, first, now, open_renders = pipe.execute()
        oldest_s = max(0.0, now[0] + now[1] / 1e6 - first[0][1]) if first else 0.0
        depths = [Depth("preview", MAILBOX, mail, 0, oldest_s)]
        for (pool, lane, _), (waiting, held, oldest_ms) in zip(places, looks, strict=True):
            depths.append(Depth(pool, lane, waiting, held, oldest_ms / 1000))
        return Look(self._members.living(), depths, open_renders)
