"""`firstlight workers`: who works for the server that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.output import print_json, print_rows, tells
from app.temporary import URL_NAME, running
from core.errors import Unavailable
from core.settings import load_settings

COLUMNS = ("worker", "roles", "ready", "model", "device", "styles", "since", "seen")
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@tells
def workers(as_json: AsJson = False) -> None:
    """Show the workers of the server that runs: what they do, with which model, on what device."""
    client = running(load_settings())
    if client is None:
        raise Unavailable(f"no server runs here; start one with `firstlight serve`, or name one with {URL_NAME}")
    found = client.workers()
    if as_json:
        return print_json(found)
    if not found["workers"]:
        typer.echo("no worker lives; start one with `firstlight worker`")
        return
    print_rows(COLUMNS, [row_of(worker, found) for worker in found["workers"]])


def row_of(worker: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The worker in words; found is what the server answered, with its own model and time."""
    model = f"{worker['model']} {worker['version']}"
    other = (worker["model"], worker["version"]) != (found["model"], found["version"])
    since_s, seen_s = (found["now_s"] - worker[name] for name in ("started_s", "seen_s"))
    return [
        worker["id"],
        ", ".join(worker["roles"]),
        _readiness(worker),
        f"{model} (not the server's)" if other else model,
        " ".join(filter(None, [worker["device"], worker["dtype"]])) or "-",
        _styles(worker),
        age(since_s),
        f"{age(seen_s)} ago",
    ]


def _styles(worker: Mapping[str, Any]) -> str:
    if worker["fused"]:
        return f"{worker['fused']} alone"
    return ", ".join(worker["styles"]) or "-"


def _readiness(worker: Mapping[str, Any]) -> str:
    if not worker["ready"]:
        return "ends" if worker.get("draining") else "no"
    return "yes" if set(worker["ready"]) == set(worker["roles"]) else ", ".join(worker["ready"])


def age(seconds: float) -> str:
    """In the largest unit that is there whole."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
