"""What went wrong with Redis, as a cause and a remedy for those who run the app."""

from __future__ import annotations

import redis

from core.settings import redis_url_name
from shared_cache.outage import Fault

FULL = "takes nothing new for the moment"


def explain(error: Exception) -> Fault:
    """Of an error of redis-py's."""
    text = str(error)
    if isinstance(error, redis.BusyLoadingError):
        return Fault("Redis is reading its data from disk", "wait, which passes")
    if isinstance(error, redis.OutOfMemoryError):
        return Fault("Redis is out of memory", "raise its maxmemory, or see `redis-cli --memkeys`", FULL)
    if isinstance(error, redis.ReadOnlyError):
        return Fault("Redis is read-only, a replica as it seems", f"point {redis_url_name()} at the primary", FULL)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return Fault(f"Redis refuses what is asked ({text})", "check user, password and ACL: +@all ~fl:*", FULL)
    if text.startswith("MISCONF"):
        return Fault(f"Redis cannot write to its disk ({text})", "free space there", FULL)
    if isinstance(error, redis.TimeoutError):
        return Fault(f"Redis does not answer ({text})", "see whether its process hangs, and the way to it")
    if isinstance(error, redis.ConnectionError):
        return Fault(f"Redis cannot be reached ({text})", f"start it, or correct {redis_url_name()}")
    return Fault(f"Redis answers: {text}", "see its own log, and whether it is as new as the scripts need", FULL)
