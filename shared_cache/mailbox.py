"""Preview requests on their way to the preview pool, and frames on their way back."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence

import redis

from core.wire import PreviewRequest
from shared_cache import keys
from shared_cache.connect import pop_blocking
from shared_cache.registry import ReadyWorkers

log = logging.getLogger(__name__)
PREVIEW_ROLE = "preview"
MAIL_TTL_S = 3600
CLOSED_TTL_S = 60
REPLY_TTL_S = 60
MAX_REPLIES = 1024  # frames that a web process may leave unread

POST_MAIL = """
-- KEYS: mail, ready, closed, wake. ARGV: session, rev, request, ttl, model, styles (JSON list).
-- An earlier rev never replaces a later one.
local known = tonumber(redis.call('HGET', KEYS[1], 'rev') or '-inf')
if known and known > tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[1], 'rev', ARGV[2], 'request', ARGV[3], 'model', ARGV[5], 'styles', ARGV[6])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local now = redis.call('TIME')
redis.call('ZADD', KEYS[2], 'NX', now[1] .. '.' .. string.format('%06d', now[2]), ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('LPUSH', KEYS[4], '1')
redis.call('LTRIM', KEYS[4], 0, 7)
return 1
"""

TAKE_MAIL = """
-- KEYS: ready. ARGV: count, model, fleet. The rev stays behind, so that a late earlier post is known as such.
-- fleet: JSON, `mine` the styles that we have and `others` those of each worker that has more; empty where none has.
local fleet = ARGV[3] ~= '' and cjson.decode(ARGV[3])
local function has(installed, styles)
  for _, style in ipairs(styles) do
    if not installed[style] then return false end
  end
  return true
end
local function for_others(styles)
  if not fleet or has(fleet.mine, styles) then return false end
  for _, installed in ipairs(fleet.others) do
    if has(installed, styles) then return true end
  end
  return false  -- nobody has all of them: it is ours to say so
end
local got, left = {}, {}
while #got < tonumber(ARGV[1]) do
  local popped = redis.call('ZPOPMIN', KEYS[1])
  if not popped[1] then break end
  local mail = 'fl:mail:' .. popped[1]
  local at = redis.call('HMGET', mail, 'request', 'model', 'styles')
  if at[1] and at[2] == ARGV[2] then  -- else the session asks another model by now
    if for_others(cjson.decode(at[3] or '[]')) then
      left[#left + 1] = popped
    else
      redis.call('HDEL', mail, 'request')
      got[#got + 1] = at[1]
    end
  end
end
for _, popped in ipairs(left) do redis.call('ZADD', KEYS[1], popped[2], popped[1]) end
return got
"""


class Mailbox:
    """Holds the newest request of each session and nothing older; takes those that ask for one model.

    installed: the styles that the taker has. Requests of others are left to the ready workers that have those.
    """

    def __init__(
        self, client: redis.Redis, model: str, installed: Collection[str] = (), ready: ReadyWorkers | None = None
    ) -> None:
        self._client = client
        self._model = model
        self._installed = frozenset(installed)
        self._fleet = ready
        self._ready = keys.mail_ready(model)
        self._post = client.register_script(POST_MAIL)
        self._take = client.register_script(TAKE_MAIL)

    def post(self, request: PreviewRequest) -> None:
        """Replaces the session's waiting request; one with an earlier rev than known is dropped."""
        session, model = request.session, request.recipe.model
        places = [keys.mail(session), keys.mail_ready(model), keys.closed(session), keys.wake(PREVIEW_ROLE)]
        styles = json.dumps([use.id for use in request.recipe.styles])
        self._post(keys=places, args=[session, request.rev, request.to_json(), MAIL_TTL_S, model, styles])

    def take(self, count: int) -> list[PreviewRequest]:
        """Up to count requests, one a session, the session that waits longest first; never waits."""
        requests = []
        for text in self._take(keys=[self._ready], args=[count, self._model, self._who_has_more()]):
            try:
                requests.append(PreviewRequest.from_json(text))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("dropped a preview request that cannot be read: %r", error)
        return requests

    def _who_has_more(self) -> str:
        """What TAKE_MAIL calls the fleet."""
        others = [] if self._fleet is None else [more for more in self._fleet.installed() if more - self._installed]
        if not others:
            return ""
        mine, *rest = (dict.fromkeys(installed, True) for installed in (self._installed, *others))
        return json.dumps({"mine": mine, "others": rest})

    def closed(self, sessions: Sequence[str]) -> set[str]:
        """The sessions that closed: nobody waits for their work any more."""
        if not sessions:
            return set()
        with self._client.pipeline(transaction=False) as pipe:
            for session in sessions:
                pipe.exists(keys.closed(session))
            return {session for session, gone in zip(sessions, pipe.execute(), strict=True) if gone}

    def close(self, session: str) -> None:
        """Drops the session's mail; work on it stops when its engine looks next."""
        with self._client.pipeline() as pipe:
            pipe.delete(keys.mail(session))
            pipe.zrem(self._ready, session)
            pipe.set(keys.closed(session), "1", ex=CLOSED_TTL_S)
            pipe.execute()


class Replies:
    """Lists of packed frames, one for each web process."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def push(self, reply_to: str, frame: bytes) -> None:
        """Appends a frame; an unread list is cut to its newest frames and forgotten after a minute."""
        key = keys.reply(reply_to)
        with self._client.pipeline() as pipe:
            pipe.rpush(key, frame)
            pipe.ltrim(key, -MAX_REPLIES, -1)
            pipe.expire(key, REPLY_TTL_S)
            pipe.execute()

    def pop(self, reply_to: str, timeout_s: float) -> bytes | None:
        """The oldest frame, waited for at most timeout_s."""
        return pop_blocking(self._client, [keys.reply(reply_to)], timeout_s)
