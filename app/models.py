"""`firstlight models`: which models there are, fetching them, and checking what lies here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table

from app.output import errors_to, print_json, tell_left_out, tells
from core.errors import InvalidInput, StartupError
from core.settings import Settings, load_settings

if TYPE_CHECKING:
    from sampling.layout import Part
    from sampling.needs import Needs
    from sampling.plan import Described, Plan, Source
    from sampling.pull import Download

GB = 1e9
COMMERCIAL = {True: "yes", False: "NO", None: "unknown"}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

models = typer.Typer(name="models", help="Show the model at work; list, pull and check others.")


@models.callback(invoke_without_command=True)
@tells
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the model behind previews and renders, its sizes and limits."""
    if context.invoked_subcommand is not None:
        return
    found = _known_models(load_settings())
    if as_json:
        return print_json(found)
    table = Table("pool", "model", "licence", "sizes", "steps", "guidance", "sampler", box=None)
    for pool, facts in found.items():
        sizes = ", ".join(f"{width}x{height}" for width, height in facts["buckets"])
        chosen, limits = facts["defaults"], facts["limits"]
        steps = f"{chosen['steps']} (1…{limits['steps'][1]})"
        model, guidance = f"{facts['id']} {facts['version']}", f"{chosen['guidance_scale']:g}"
        table.add_row(pool, model, facts["licence"], sizes, steps, guidance, chosen["sampler"])
    Console().print(table)


def _known_models(settings: Settings) -> dict[str, Any]:
    """From the server that runs, else from the model's files."""
    from app.temporary import running

    if (client := running(settings)) is not None:
        return client.models()
    from app.meta import describe_models
    from sampling.profile import load_profile

    return describe_models(load_profile(settings.model))


@models.command("list")
@tells
def list_models(as_json: AsJson = False) -> None:
    """List the profiles that FIRSTLIGHT_MODEL may name, and whether they are on this machine."""
    from sampling.plan import describe, profile_names, profile_path

    found = [_summary(describe(path)) for name in profile_names() if (path := profile_path(name)) is not None]
    if as_json:
        return print_json({"models": found})
    table = Table(Column("profile", no_wrap=True), "here", "commercial use", "licences", "what", box=None)
    for facts in found:
        licences = "; ".join(dict.fromkeys(source["licence"] for source in facts["sources"]))
        here = "yes" if facts["here"] else "no"
        table.add_row(facts["id"], here, facts["commercial"], escape(licences), facts["about"])
    Console().print(table)


def _summary(described: Described) -> dict[str, Any]:
    from sampling.hub import pulled

    sources = [
        {
            "name": source.name,
            "from": str(source.where),
            "licence": source.licence,
            "licence_url": source.licence_url,
            "commercial": source.commercial,
            "here": source.hub is None or pulled(source.hub, source.revision) is not None,
        }
        for source in described.sources.values()
    ]
    allowed = {source["commercial"] for source in sources}
    whole = False if False in allowed else None if None in allowed else True
    return {
        "id": described.id,
        "about": described.about,
        "commercial": COMMERCIAL[whole],
        "here": all(source["here"] for source in sources),
        "sources": sources,
    }


@models.command("pull")
@tells
def pull(
    profile: Annotated[str, typer.Argument(help="A profile, or an id of the hub", show_default=False)],
    carried: Annotated[
        Path | None, typer.Option("--from", help="A folder that holds the files, instead of the hub")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept the licences without being asked")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a model: licences and size first, then what is missing, then every checksum."""
    from sampling.pull import fetch, look_up, take

    wanted = _wanted(profile)
    if carried is not None and not carried.is_dir():
        raise InvalidInput("--from", f"{carried} is no folder")
    downloads = [] if carried is not None else [look_up(source, needs) for source, needs in wanted]
    _show(wanted, downloads)
    _confirm(yes, as_json)
    if carried is not None:
        with _progress("copying", None) as told:
            folders = [take(source, needs, carried, told) for source, needs in wanted]
    else:
        _check_room(downloads)
        with _progress("fetching", sum(download.missing_bytes for download in downloads)) as told:
            folders = [fetch(download, told) for download in downloads]
    if as_json:
        places = {str(source.hub): str(folder) for (source, _), folder in zip(wanted, folders, strict=True)}
        return print_json({"model": profile, "folders": places})
    typer.echo(f"{profile} is here; start with: FIRSTLIGHT_MODEL={profile} firstlight serve")


def _wanted(profile: str) -> list[tuple[Source, Needs]]:
    from sampling.hub import HUB_ID
    from sampling.needs import needs_of, own_needs
    from sampling.plan import Source, describe, profile_names, profile_path

    path = profile_path(profile)
    if path is not None:
        described = describe(path)
        needs = needs_of(described)
        found = [(source, needs[name]) for name, source in described.sources.items() if source.hub is not None]
        if not found:
            raise InvalidInput("profile", f"{profile} is on this machine already; nothing is to be fetched")
        return found
    if not HUB_ID.fullmatch(profile):
        raise InvalidInput("profile", f"must be one of {', '.join(profile_names())}, or an id of the hub as owner/name")
    return [(Source("own", hub=profile, variant="fp16"), own_needs())]


def _show(wanted: Sequence[tuple[Source, Needs]], downloads: Sequence[Download]) -> None:
    """Licences with their addresses, and sizes where the hub told them."""
    for i, (source, _) in enumerate(wanted):
        stated = downloads[i].licence if downloads else None
        licence = source.licence if source.licence_url else stated or source.licence
        _say(f"{source.hub}: {licence}; commercial use: {COMMERCIAL[source.commercial]}")
        if source.licence_url:
            _say(f"  {source.licence_url}")
        if downloads:
            found = downloads[i]
            sizes = f"{decimal(found.size_bytes)}, of which {decimal(found.missing_bytes)} are to be fetched"
            _say(f"  {len(found.files)} files, {sizes}")
    barred = [str(source.hub) for source, _ in wanted if source.commercial is False]
    if barred:
        _say(f"not free for commercial use: {', '.join(barred)}", style="yellow")


def _say(text: str, style: str | None = None) -> None:
    errors_to.print(text, style=style, markup=False, soft_wrap=True)


def _confirm(yes: bool, as_json: bool) -> None:
    """Raises: InvalidInput when nobody can be asked; typer.Abort when the answer is no."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InvalidInput("--yes", "is needed to accept the licences where nobody can be asked")
    typer.confirm("Do you accept these licences?", abort=True, err=True)


def _check_room(downloads: Sequence[Download]) -> None:
    from sampling.hub import cache_folder

    place = next(folder for folder in (cache_folder(), *cache_folder().parents) if folder.is_dir())
    free, needed = shutil.disk_usage(place).free, sum(download.missing_bytes for download in downloads)
    if needed > free:
        cause = f"{needed / GB:.1f} GB are to be fetched, {free / GB:.1f} GB are free in {place}"
        raise StartupError(cause, "make room there, or let HF_HOME name a folder on a larger disk")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], object]]:
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors_to, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


@models.command("check")
@tells
def check(
    model: Annotated[str | None, typer.Argument(help="Profile, folder, file or hub id; FIRSTLIGHT_MODEL")] = None,
    as_json: AsJson = False,
) -> None:
    """Read all of a model's files: their kind, that nothing is missing or broken, and what they need of memory."""
    from sampling.memory import free_bytes
    from sampling.plan import plan_of

    settings = load_settings(**({} if model is None else {"model": model}))
    plan = plan_of(settings.model)
    _check_weights(plan)
    facts = {
        **_facts(plan),
        "checksums": _check_sums(plan),
        "free_gb": round(free_bytes() / GB, 2),
        **_styles(settings),
    }
    if as_json:
        return print_json(facts)
    table = Table("part", "numbers", "on disk", "files", box=None)
    for part in facts["parts"]:
        table.add_row(part["name"], f"{part['numbers']:,}", decimal(part["bytes"]), "\n".join(part["files"]))
    Console().print(table)
    needed = ", ".join(f"{gb:.1f} GB as {dtype}" for dtype, gb in facts["memory_gb"].items())
    typer.echo(f"{facts['model']} is whole{_compared(facts['checksums'])}")
    typer.echo(f"weights need {needed}; {facts['free_gb']:.1f} GB are free")
    typer.echo(f"styles: {', '.join(facts['styles']) or 'none'}")
    tell_left_out(facts)


def _compared(checksums: int) -> str:
    return f"; {checksums} checksums were compared" if checksums else ""


def _styles(settings: Settings) -> dict[str, Any]:
    """The styles that fit the model, and what is left out of them."""
    from app.meta import describe_catalogue
    from styles.catalogue import open_catalogue

    found = describe_catalogue(open_catalogue(settings))
    return {**found, "styles": [style["id"] for style in found["styles"]]}


def _facts(plan: Plan) -> dict[str, Any]:
    from sampling.memory import DTYPE_BYTES, needed_bytes

    roles = ("preview", "final", "decode")
    return {
        "model": plan.profile.model,
        "parts": [
            {
                "name": part.name,
                "numbers": part.elements(),
                "bytes": part.stored_bytes(),
                "files": [str(path) for path in part.files],
            }
            for part in _parts(plan)
        ],
        "memory_gb": {dtype: round(needed_bytes(plan, roles, dtype) / GB, 2) for dtype in DTYPE_BYTES},
    }


def _check_weights(plan: Plan) -> None:
    """Raises: StartupError for weights that are missing, of the wrong shape or not finite."""
    from sampling.weights import check_part, quieten_libraries

    parts = _parts(plan)
    quieten_libraries()
    with _progress("reading", sum(part.stored_bytes() for part in parts)) as told:
        for part in parts:
            check_part(part, told)


def _parts(plan: Plan) -> list[Part]:
    """Each once, also where both pools have it."""
    return list({(part.name, part.files): part for part in plan.parts()}.values())


def _check_sums(plan: Plan) -> int:
    """How many files of the hub's cache have the content that their blob's name says.

    Raises: StartupError for one that has not.
    """
    from sampling.pull import digest_of

    blobs: Mapping[Path, Path] = {
        path.resolve(): path for part in plan.parts() for path in part.files if path.resolve().parent.name == "blobs"
    }
    with _progress("checking", sum(blob.stat().st_size for blob in blobs)) as told:
        for blob, path in blobs.items():
            if digest_of(blob, len(blob.name), told) != blob.name:
                raise StartupError(f"{path} is damaged: its checksum is not the hub's", "pull the model again")
    return len(blobs)
