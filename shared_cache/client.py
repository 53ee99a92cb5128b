"""The queue's client: how long a call may take, what is tried again, and who is told when Redis is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.client import Pipeline

from shared_cache.outage import Outage
from shared_cache.redis_faults import explain

PATIENCE_S = 3.0  # for a server that is being started again
REST_S = 0.25  # between looks whether it is back
QUIET_S = 5.0  # each process writes more often

Answer = TypeVar("Answer")


class Line:
    """What all calls of one client have in common. Safe for threads.

    A call that finds nobody there is made again for PATIENCE_S; one that gets no answer is not, as it may have been
    heard. While Redis is away one call at a time finds out whether it is back, and the others fail at once, so that
    nobody waits behind others who wait. hang_up is called when an answer did not come.
    """

    def __init__(
        self,
        hang_up: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._outage = Outage("the queue cannot be used", "the queue can be used", QUIET_S, clock)
        self._hang_up = hang_up
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._away: redis.RedisError | None = None  # why, while it is
        self._asking = False  # whether somebody looks meanwhile
        self._looked_s = 0.0  # when that last came to nothing
        self._answered_s = clock()

    def call(self, ask: Callable[[], Answer]) -> Answer:
        """What Redis answers.

        Raises: what redis-py does; its ConnectionError or TimeoutError at once while Redis is known to be away.
        """
        with self._lock:
            away, began_s = self._away, self._clock()
            if away is not None and (self._asking or began_s < self._looked_s + REST_S):
                raise type(away)(*away.args)
            self._asking = away is not None
        try:
            answer = ask() if away is not None else self._patiently(ask, began_s)
        except redis.RedisError as error:
            self._failed(error, began_s)
            raise
        finally:
            if away is not None:
                self._asking = False
        self._answered()
        return answer

    def _patiently(self, ask: Callable[[], Answer], began_s: float) -> Answer:
        backoff, tries = ExponentialWithJitterBackoff(cap=0.5, base=0.02), 0
        while True:
            try:
                return ask()
            except redis.ConnectionError as error:
                tries += 1
                wait_s = backoff.compute(tries)
                if not _is_away(error) or self._clock() + wait_s > began_s + PATIENCE_S:
                    raise
                self._sleep(wait_s)

    def _failed(self, error: redis.RedisError, began_s: float) -> None:
        if isinstance(error, redis.exceptions.NoScriptError) or str(error).startswith("NOGROUP"):
            return self._answered()  # who asked knows what to do
        if isinstance(error, redis.TimeoutError):
            self._hang_up()
        with self._lock:
            if not _is_away(error):
                self._away, self._answered_s = None, self._clock()  # it answers, if only to refuse
            elif began_s < self._answered_s:
                return  # it has answered others since
            else:
                self._away, self._looked_s = error, self._clock()
        self._outage.failed(explain(error))

    def _answered(self) -> None:
        with self._lock:
            self._away, self._answered_s = None, self._clock()
        self._outage.worked()


def _is_away(error: Exception) -> bool:
    """Who refuses a login is there, though redis-py counts it among the failures to connect."""
    there = isinstance(error, redis.AuthenticationError)
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not there


class Queue(redis.Redis):
    """redis-py's client, each call of which goes over one Line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        pool = self.connection_pool
        self._line = Line(lambda: pool.disconnect(inuse_connections=False))  # idle ones lead to the same silence

    def execute_command(self, *args: Any, **options: Any) -> Any:
        ask: Callable[..., Any] = super().execute_command
        return self._line.call(lambda: ask(*args, **options))

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return _Batch(self._line, self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Batch(Pipeline):
    def __init__(self, line: Line, *settings: Any) -> None:
        super().__init__(*settings)
        self._line = line

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        ask, commands, scripts = super().execute, self.command_stack, self.scripts

        def again() -> list[Any]:
            self.command_stack, self.scripts = commands, scripts  # redis-py forgets them, whatever comes of it
            return ask(raise_on_error)

        return self._line.call(again)
