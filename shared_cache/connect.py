"""The one Redis client and its blocking wait."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.clock import SteadyClock
from core.errors import StartupError
from core.settings import redis_url_name
from shared_cache.client import Queue

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 2.0, 3.0  # people wait behind every call
CACHE_TIMEOUT_S = 0.25
MAX_BLOCK_S = 1.0  # below the timeout of an answer, so that a quiet wait is not taken for a dead server
KEEPS_ALL = "noeviction"
MOST_AHEAD_S = 60.0  # of this machine's clock to the server's
OLDEST_MAJOR = 7  # entries deleted from a stream leave XAUTOCLAIM's answer since 7.0


def connect(url: str) -> redis.Redis:
    """A client for the whole process, checked once.

    Raises: StartupError when the URL is wrong, nobody answers, the password is refused, or the server is too old or may
    throw away what waits.
    """
    try:
        client = Queue.from_url(
            url,
            protocol=2,
            decode_responses=False,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            max_connections=256,
            retry=Retry(NoBackoff(), 0),  # the Line tries again
        )
        probe = redis.Redis.from_url(url, protocol=2, socket_timeout=3.0, socket_connect_timeout=3.0)
    except ValueError as error:
        raise StartupError(
            f"the Redis URL {redacted(url)} cannot be read: {error}",
            f"give {redis_url_name()} as redis://host:port/0, rediss://… or unix:///path/redis.sock, "
            "or leave it out for the built-in one",
        ) from error
    with probe:  # a first answer is not waited for as long as later ones
        _check(probe, url)
        _check_eviction(probe, url)
    return client


def connect_cache(url: str) -> redis.Redis:
    """A client for what may be lost: it is not asked for an answer now, and later never waits long for one.

    Raises: StartupError when the URL is wrong.
    """
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            decode_responses=False,
            socket_timeout=CACHE_TIMEOUT_S,
            socket_connect_timeout=CACHE_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise StartupError(
            f"the URL of the cache {redacted(url)} cannot be read: {error}", "give FIRSTLIGHT_CACHE_URL as a Redis URL"
        ) from error


def shared_clock(client: redis.Redis) -> SteadyClock:
    """The server's time, which all processes share, carried on by this machine's monotonic clock.

    Deadlines hold by it, but signed addresses of pictures are dated by the machine's own: one that is off is told.
    """
    seconds, microseconds = client.time()
    now_s = seconds + microseconds / 1e6
    ahead_s = time.time() - now_s
    if abs(ahead_s) > MOST_AHEAD_S:
        log.warning(
            "this machine's clock is %.0f s %s that of Redis; set both (NTP), or addresses of pictures may be refused",
            abs(ahead_s),
            "ahead of" if ahead_s > 0 else "behind",
        )
    return SteadyClock(now_s)


def redacted(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url))


def _check(client: redis.Redis, url: str) -> None:
    try:
        version = str(client.info("server").get("redis_version", "0"))
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise StartupError(
            f"Redis at {redacted(url)} refuses the login: {error}", f"check user and password in {redis_url_name()}"
        ) from error
    except redis.ResponseError as error:  # NOAUTH arrives as one when the URL names no password
        cause, remedy = f"Redis at {redacted(url)} answers: {error}", f"check {redis_url_name()} and the server"
        raise StartupError(cause, remedy) from error
    except (redis.RedisError, OSError) as error:
        raise StartupError(
            f"Redis at {redacted(url)} cannot be reached: {error}",
            f"start it, correct {redis_url_name()}, or leave that out for the built-in one",
        ) from error
    if int(version.split(".")[0]) < OLDEST_MAJOR:
        raise StartupError(f"Redis at {redacted(url)} is version {version}", "use Redis 7 or Valkey 7.2 or newer")


def _check_eviction(client: redis.Redis, url: str) -> None:
    """Lanes and records must stay until they are done with, and records that have ended have times to live."""
    try:
        found = client.config_get("maxmemory-policy").get("maxmemory-policy", KEEPS_ALL)
    except redis.ResponseError:  # managed servers keep CONFIG to themselves
        policy = client.info("memory").get("maxmemory_policy", KEEPS_ALL)
        if policy != KEEPS_ALL:
            log.warning(
                "Redis at %s may throw waiting renders away: its maxmemory-policy is %s; set it to %s where the server "
                "is managed",
                redacted(url),
                policy,
                KEEPS_ALL,
            )
        return
    if found != KEEPS_ALL:
        raise StartupError(
            f"Redis at {redacted(url)} may throw waiting renders away: its maxmemory-policy is {found}",
            f"run `redis-cli CONFIG SET maxmemory-policy {KEEPS_ALL}` there, and write it into its configuration file",
        )


def pop_blocking(client: redis.Redis, keys: Sequence[str], timeout_s: float) -> bytes | None:
    """The head of the first list that has one, waited for at most timeout_s; None when nothing came."""
    ends_s = time.monotonic() + timeout_s
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0.001:  # BLPOP takes 0 for "for ever"
            return None
        popped = client.blpop(list(keys), timeout=round(min(left_s, MAX_BLOCK_S), 3))
        if popped:
            return cast(bytes, popped[1])
