"""A client of the HTTP API for the command line."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from core.errors import FirstlightError, Unavailable
from core.render import TERMINAL, State

LOOK_AGAIN_S = 0.25
AWAY_S = 60.0  # how long the server's queue is waited for
TIMEOUT_S = httpx.Timeout(60.0, connect=5.0)
READY_TIMEOUT_S = 5.0
_AGAIN_S = 0.7
_LOST = (502, 504)  # of a proxy that could not reach the server: nobody knows whether the request did
_JSON = {"Content-Type": "application/json"}
_TERMINAL = frozenset(state.value for state in TERMINAL)


class Refused(FirstlightError):
    """The server said no; code, message and field are its own."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "the server gave no reason")), field=error.get("field"))
        self.code = str(error.get("code", "error"))


class Client:
    """Speaks to one server; what that cannot do while its queue is away is asked again for AWAY_S.

    tell: hears of such a wait when it begins. Raises: Refused, Unavailable.
    """

    def __init__(self, url: str, tell: Callable[[str], object] = lambda text: None) -> None:
        self.url = url.rstrip("/") + "/"
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        self._http = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=not local)
        self._tell = tell
        self._away_s: float | None = None  # since when its queue is away

    def close(self) -> None:
        self._http.close()

    def alive(self) -> bool:
        try:
            return self._http.get("healthz", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def awaited(self) -> str:
        """What the server waits for until it is ready; "" when it is.

        Raises: Unavailable when its queue has been away for AWAY_S.
        """
        try:
            answer = self._http.get("readyz", timeout=READY_TIMEOUT_S)
            found = answer.json()
            state, reason = found["state"], "" if answer.status_code == 200 else str(found["reason"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return "the server does not answer"
        if state == "away":
            self._wait_for(reason)
        else:
            self._away_s = None
        return reason

    def preview(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", "api/v1/previews", fields)

    def render(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A request that may not have arrived is sent once more under the same key, so it never counts twice."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self._ask("POST", "api/v1/renders", fields, key)
        except Unavailable:
            time.sleep(_AGAIN_S)
            return self._ask("POST", "api/v1/renders", fields, key)

    def look(self, render_id: str) -> dict[str, Any]:
        return self._ask("GET", f"api/v1/renders/{render_id}")

    def cancel(self, render_id: str) -> dict[str, Any]:
        return self._ask("DELETE", f"api/v1/renders/{render_id}")

    def styles(self) -> dict[str, Any]:
        return self._ask("GET", "api/v1/styles")

    def workers(self) -> dict[str, Any]:
        return self._ask("GET", "api/v1/workers")

    def models(self) -> dict[str, Any]:
        return self._ask("GET", "api/v1/models")

    def follow(self, render_id: str) -> Iterator[dict[str, Any]]:
        """The record, again and again, until the render has ended."""
        while True:
            record = self.look(render_id)
            yield record
            if record["state"] in _TERMINAL:
                return
            time.sleep(LOOK_AGAIN_S)

    def picture(self, url: str) -> bytes:
        """Bytes of a picture; url as the record names it."""
        try:
            answer = self._http.get(urljoin(self.url, url))
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if answer.is_error:
            raise Refused(_error_of(answer))
        return answer.content

    def _ask(
        self, method: str, path: str, fields: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        while (answer := self._send(method, path, fields, headers)).status_code == 503:
            error = _error_of(answer)
            if error.get("code") != Unavailable.code:
                break
            self._wait_for(str(error.get("message")).partition(";")[0])
            asked = answer.headers.get("Retry-After", "")
            time.sleep(float(asked) if asked.isdigit() else _AGAIN_S)
        self._away_s = None
        if answer.is_error:
            raise Refused(_error_of(answer))
        return dict(answer.json())

    def _wait_for(self, what: str) -> None:
        """Raises: Unavailable when that has lasted for AWAY_S."""
        now_s = time.monotonic()
        if self._away_s is None:
            self._away_s = now_s
            self._tell(f"{what}; trying again for {AWAY_S:.0f} s")
        if now_s - self._away_s >= AWAY_S:
            raise Unavailable(f"{what}, for {AWAY_S:.0f} s now; the server's log says why and what to do")

    def _send(
        self, method: str, path: str, fields: dict[str, Any] | None, headers: dict[str, str] | None
    ) -> httpx.Response:
        # ASCII, and with NaN and lone surrogates as they are: the server names the field and its bound.
        content = None if fields is None else json.dumps(fields)
        try:
            answer = self._http.request(method, path, content=content, headers={**_JSON, **(headers or {})})
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if answer.status_code in _LOST:
            raise Unavailable(f"no answer from behind {self.url}: the proxy there says {answer.status_code}")
        return answer

    def _away(self, error: httpx.HTTPError) -> Unavailable:
        return Unavailable(f"no answer from {self.url}: {error}")


def _error_of(answer: httpx.Response) -> dict[str, Any]:
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    return error if isinstance(error, dict) else {"message": f"the server answered {answer.status_code}"}


def failure_of(record: dict[str, Any]) -> Refused | None:
    """Why a render that has ended has no picture."""
    if record["state"] == State.DONE.value:
        return None
    return Refused(record["error"] or {"code": record["state"], "message": f"the render was {record['state']}"})
