"""The command `firstlight`."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from app.bench import bench
from app.evaluate import evaluate
from app.export import export
from app.fleet import workers
from app.models import models
from app.output import print_json, tell_left_out, tells
from app.probe import probe
from app.roles import ROLES, roles_of
from app.verbs import preview, render
from core.errors import StartupError
from core.settings import Settings, load_settings

app = typer.Typer(
    name="firstlight",
    epilog="Begin with: firstlight serve. Or at once: firstlight render 'a cat on the beach' -o cat.png",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Hidden = Annotated[bool, typer.Option(hidden=True)]


def _told(asked: bool) -> None:
    if asked:
        typer.echo(f"firstlight {version('firstlight')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_told, is_eager=True)]


@app.callback()
def firstlight(asked: Version = False) -> None:
    """Type, see the picture form as you type, accept, and get that same picture in full."""


@app.command()
@tells
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (FIRSTLIGHT_HOST, 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port, 0 for a free one (FIRSTLIGHT_PORT, 7860)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Pictures, queue (FIRSTLIGHT_DATA_DIR, .firstlight)")] = None,
    model: Annotated[str | None, typer.Option(help="Profile, folder or file (FIRSTLIGHT_MODEL, storybook)")] = None,
    roles: Annotated[str | None, typer.Option(help="Roles of the worker it starts; '' starts none")] = None,
    as_json: AsJson = False,
    temporary: Hidden = False,
    exit_with_parent: Hidden = False,
) -> None:
    """Run the page, the API and a worker, in the foreground, until Ctrl+C."""
    from app.serve import serve as run

    _prepare(exit_with_parent)
    asked = {"host": host, "port": port, "data_dir": data_dir, "model": model, "roles": roles}
    settings = load_settings(**{name: value for name, value in asked.items() if value is not None})

    def say(what: str, facts: dict[str, Any]) -> None:
        if as_json:
            if what == "open":
                print_json(facts)
        else:
            typer.echo(_sentence(what, facts))

    run(settings, say, announce=not temporary)


def _sentence(what: str, facts: dict[str, Any]) -> str:
    if what == "open":
        worker = "the model is loading" if facts["roles"] else "it has no worker: start one with `firstlight worker`"
        return f"Firstlight is at {facts['url']}\n{worker}; Ctrl+C stops everything"
    if what == "ready":
        return f"ready after {facts['seconds']} s"
    return "stopped"


app.add_typer(bench)
app.add_typer(export)
app.add_typer(models)
app.command("preview")(preview)
app.command("render")(render)
app.command("workers")(workers)
app.command("probe")(probe)
app.command("eval")(evaluate)


@app.command()
@tells
def styles(as_json: AsJson = False) -> None:
    """List the styles that --style takes."""
    found = _known_styles(load_settings())
    if as_json:
        return print_json(found)
    table = Table(Column("style", no_wrap=True), "weight", "words", "what it does", "licence", box=None)
    for style in found["styles"]:
        told = (", ".join(style["trigger_words"]), style["description"], style["licence"])
        table.add_row(style["id"], f"{style['weight']:g}", *map(escape, told))
    Console().print(table)
    tell_left_out(found)


@app.command()
@tells
def worker(
    roles: Annotated[
        str | None, typer.Option(help="Some of preview, final, decode, finish (FIRSTLIGHT_ROLES, all)")
    ] = None,
    fuse: Annotated[str | None, typer.Option(help="Only renders of this style, in its weights: ink or ink:0.8")] = None,
    exit_with_parent: Hidden = False,
) -> None:
    """Run a worker of one or more roles; it finds its work in Redis."""
    from app.embedded_queue import queue_of
    from sampling.memory import check_fits
    from shared_cache.objects import open_objects

    _prepare(exit_with_parent)
    settings = load_settings(**({} if fuse is None else {"fuse": fuse}))
    wanted = roles_of(settings.roles if roles is None else roles)
    if not wanted:
        raise StartupError("a worker needs a role", f"use some of {', '.join(ROLES)}")
    check_fits(settings.model, wanted, settings.device)  # the cheap checks first: importing torch takes seconds
    if "finish" in wanted:
        open_objects(settings, writes=True)
    with queue_of(settings) as connected:
        from app.worker import run_worker

        assert connected.redis_url is not None
        run_worker(wanted, connected, connected.redis_url)
    _leave()


def _leave() -> NoReturn:
    """All is closed by now; to take apart what torch has built takes seconds, and whoever waits may kill."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _known_styles(settings: Settings) -> dict[str, Any]:
    """From the server that runs, else from the model folder."""
    from app.temporary import running

    if (client := running(settings)) is not None:
        return client.styles()
    from app.meta import describe_catalogue
    from styles.catalogue import open_catalogue

    return describe_catalogue(open_catalogue(settings))


def _prepare(exit_with_parent: bool) -> None:
    level = logging.WARNING if exit_with_parent else logging.INFO  # the parent says what a person should know
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore", "gradio", "matplotlib", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if exit_with_parent:
        from app.parents import exit_with_parent as watch

        watch()


def main() -> None:
    app()


if __name__ == "__main__":
    main()
