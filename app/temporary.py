"""The server a command talks to: the one that runs, or one of its own for as long as the command takes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import httpx

from app.address import announced_url
from app.client import Client
from app.output import errors_to
from app.serve import child_environment, self_command
from core.errors import Unavailable
from core.settings import Settings

URL_NAME = "FIRSTLIGHT_URL"
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
SAID_CHARACTERS = 2000


def running(settings: Settings) -> Client | None:
    """The server that FIRSTLIGHT_URL names, else the one of this data folder if it answers.

    Raises: Unavailable when FIRSTLIGHT_URL is set and nobody answers there.
    """
    named = os.environ.get(URL_NAME)
    url = named or announced_url(settings.data_dir)
    if url is None:
        return None
    try:
        client = Client(url, errors_to.print)
    except httpx.InvalidURL:
        raise Unavailable(f"{url} is no address of a server") from None
    if client.alive():
        return client
    client.close()
    if named:
        raise Unavailable(f"{URL_NAME} is {named}, but no Firstlight answers there")
    return None


@contextmanager
def server(settings: Settings, say: Callable[[str], None]) -> Iterator[Client]:
    """A client of a server that is ready."""
    client = running(settings)
    if client is not None:
        try:
            wait_until_ready(client, say, lambda: True)
            yield client
        finally:
            client.close()
        return
    # Said apart: what say is given moves on a terminal only, and this takes minutes.
    errors_to.print("no server here; starting one for the moment")
    with _started(settings) as (child, url):
        client = Client(url, errors_to.print)
        try:
            say("loading the model")
            wait_until_ready(client, say, lambda: child.poll() is None)
            yield client
        finally:
            client.close()


def wait_until_ready(client: Client, say: Callable[[str], None], alive: Callable[[], bool]) -> None:
    """Raises: Unavailable when the server ends or is not ready after READY_TIMEOUT_S."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while reason := client.awaited():
        if not alive():
            raise Unavailable("the server ended before it was ready; `firstlight serve` shows why")
        if time.monotonic() > deadline_s:
            raise Unavailable(f"the server was not ready after {READY_TIMEOUT_S:.0f} s: {reason}")
        say(reason)
        time.sleep(0.1)


@contextmanager
def _started(settings: Settings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port; it ends with this process whatever happens."""
    command = self_command("serve", "--port", "0", "--json", "--temporary", "--exit-with-parent")
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command,
            env=child_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        with _ended(child):
            yield child, _url_of(child, said)


def _url_of(child: subprocess.Popen[str], said: IO[str]) -> str:
    """What the server's first line names. Raises: Unavailable with its own words when it ends instead."""
    assert child.stdout is not None
    line = child.stdout.readline()
    told = json.loads(line) if line.strip() else {}
    if "url" in told:
        return str(told["url"])
    said.seek(0)
    why = told["error"]["message"] if "error" in told else said.read()[-SAID_CHARACTERS:].rstrip()
    raise Unavailable(f"no server could be started: {why}")


@contextmanager
def _ended(child: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the child when the block ends."""
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
