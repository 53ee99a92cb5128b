"""Preview requests on their way to the preview pool, and frames on their way back."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import redis

from core.wire import PreviewRequest
from shared_cache import keys
from shared_cache.connect import pop_blocking

log = logging.getLogger(__name__)
PREVIEW_ROLE = "preview"
MAIL_TTL_S = 3600
CLOSED_TTL_S = 60
REPLY_TTL_S = 60
MAX_REPLIES = 1024  # frames that a web process may leave unread

POST_MAIL = """
-- KEYS: mail, ready, closed, wake. ARGV: session, rev, request, ttl, model. An earlier rev never replaces a later one.
local known = tonumber(redis.call('HGET', KEYS[1], 'rev') or '-inf')
if known and known > tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[1], 'rev', ARGV[2], 'request', ARGV[3], 'model', ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local now = redis.call('TIME')
redis.call('ZADD', KEYS[2], 'NX', now[1] .. '.' .. string.format('%06d', now[2]), ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('LPUSH', KEYS[4], '1')
redis.call('LTRIM', KEYS[4], 0, 7)
return 1
"""

TAKE_MAIL = """
-- KEYS: ready. ARGV: count, model. The rev stays behind, so that a late earlier post is known as such.
local got = {}
while #got < tonumber(ARGV[1]) do
  local session = redis.call('ZPOPMIN', KEYS[1])[1]
  if not session then break end
  local mail = 'fl:mail:' .. session
  local at = redis.call('HMGET', mail, 'request', 'model')
  if at[1] and at[2] == ARGV[2] then  -- else the session asks another model by now
    redis.call('HDEL', mail, 'request')
    got[#got + 1] = at[1]
  end
end
return got
"""


class Mailbox:
    """Holds the newest request of each session and nothing older; takes those that ask for one model."""

    def __init__(self, client: redis.Redis, model: str) -> None:
        self._client = client
        self._model = model
        self._ready = keys.mail_ready(model)
        self._post = client.register_script(POST_MAIL)
        self._take = client.register_script(TAKE_MAIL)

    def post(self, request: PreviewRequest) -> None:
        """Replaces the session's waiting request; one with an earlier rev than known is dropped."""
        session, model = request.session, request.recipe.model
        places = [keys.mail(session), keys.mail_ready(model), keys.closed(session), keys.wake(PREVIEW_ROLE)]
        self._post(keys=places, args=[session, request.rev, request.to_json(), MAIL_TTL_S, model])

    def take(self, count: int) -> list[PreviewRequest]:
        """Up to count requests, one a session, the session that waits longest first; never waits."""
        requests = []
        for text in self._take(keys=[self._ready], args=[count, self._model]):
            try:
                requests.append(PreviewRequest.from_json(text))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("dropped a preview request that cannot be read: %r", error)
        return requests

    def wait(self, timeout_s: float) -> None:
        """Blocks until there may be mail, which stays where it is."""
        if not self._client.exists(self._ready):
            pop_blocking(self._client, [keys.wake(PREVIEW_ROLE)], timeout_s)

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
