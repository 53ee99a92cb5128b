"""Preview requests on their way to the preview pool, and frames on their way back."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import redis

from core.wire import PreviewRequest
from shared_cache import keys, scripts
from shared_cache.connect import pop_blocking

log = logging.getLogger(__name__)
PREVIEW_ROLE = "preview"
MAIL_TTL_S = 3600
CLOSED_TTL_S = 60
REPLY_TTL_S = 60
MAX_REPLIES = 1024  # frames that a web process may leave unread


class Mailbox:
    """Holds the newest request of each session and nothing older."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._post = client.register_script(scripts.POST_MAIL)
        self._take = client.register_script(scripts.TAKE_MAIL)

    def post(self, request: PreviewRequest) -> None:
        """Replaces the session's waiting request; one with an earlier rev than known is dropped."""
        session = request.session
        places = [keys.mail(session), keys.MAIL_READY, keys.closed(session), keys.wake(PREVIEW_ROLE)]
        self._post(keys=places, args=[session, request.rev, request.to_json(), MAIL_TTL_S])

    def take(self, count: int) -> list[PreviewRequest]:
        """Up to count requests, one a session, the session that waits longest first; never waits."""
        requests = []
        for text in self._take(keys=[keys.MAIL_READY], args=[count]):
            try:
                requests.append(PreviewRequest.from_json(text))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("dropped a preview request that cannot be read: %r", error)
        return requests

    def wait(self, timeout_s: float) -> None:
        """Blocks until there may be mail, which stays where it is."""
        if not self._client.exists(keys.MAIL_READY):
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
            pipe.zrem(keys.MAIL_READY, session)
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
