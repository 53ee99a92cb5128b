"""The one Redis client and its blocking wait."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import cast

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from core.clock import SteadyClock
from core.errors import StartupError

SOCKET_TIMEOUT_S = 30.0
MAX_BLOCK_S = 10.0  # below the socket's timeout, so that a quiet wait is not taken for a dead server
OLDEST_MAJOR = 7  # entries deleted from a stream leave XAUTOCLAIM's answer since 7.0


def connect(url: str) -> redis.Redis:
    """A client for the whole process, checked once.

    Raises: StartupError when the URL is wrong, nobody answers, the password is refused or the server is too old.
    """
    try:
        client = redis.Redis.from_url(
            url,
            protocol=2,
            decode_responses=False,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=3.0,
            health_check_interval=15,
            max_connections=256,
            retry=Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.02), retries=10),
            retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
        )
        probe = redis.Redis.from_url(url, protocol=2, socket_timeout=3.0, socket_connect_timeout=3.0)
    except ValueError as error:
        raise StartupError(
            f"the Redis URL {redacted(url)} cannot be read: {error}",
            "give redis://host:port/0, rediss://… or unix:///path/redis.sock, or leave it out for the built-in one",
        ) from error
    with probe:  # a first answer is not waited for as long as later ones
        _check(probe, url)
    return client


def shared_clock(client: redis.Redis) -> SteadyClock:
    """The server's time, which all processes share, carried on by this machine's monotonic clock."""
    seconds, microseconds = client.time()
    return SteadyClock(seconds + microseconds / 1e6)


def redacted(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url))


def _check(client: redis.Redis, url: str) -> None:
    try:
        version = str(client.info("server").get("redis_version", "0"))
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise StartupError(
            f"Redis at {redacted(url)} refuses the login: {error}", "check user and password in REDIS_URL"
        ) from error
    except redis.ResponseError as error:  # NOAUTH arrives as one when the URL names no password
        raise StartupError(f"Redis at {redacted(url)} answers: {error}", "check REDIS_URL and the server") from error
    except (redis.RedisError, OSError) as error:
        raise StartupError(
            f"Redis at {redacted(url)} cannot be reached: {error}",
            "start it, correct REDIS_URL, or leave REDIS_URL out for the built-in one",
        ) from error
    if int(version.split(".")[0]) < OLDEST_MAJOR:
        raise StartupError(f"Redis at {redacted(url)} is version {version}", "use Redis 7 or Valkey 7.2 or newer")


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
