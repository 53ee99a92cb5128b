"""`firstlight eval`: the gate that a change of weights, precision or code has to pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.output import FAILED, errors_to, print_json, tells
from core.errors import FirstlightError, InvalidInput
from core.settings import Settings, load_settings

if TYPE_CHECKING:
    from final_engine.gate.reference import Reference
    from final_engine.gate.report import Line, Outcome

WIDTH = 132  # the table's, also where a terminal is narrower: a cut figure is no figure
COLUMNS = {
    "finite": ("finite", "{:.0%}"),
    "allowed": ("shown", "{:.0%}"),
    "object": ("object", "{:.2f}"),
    "right": ("right", "{:.0%}"),
    "background": ("place", "{:.2f}"),
    "style": ("style", "{:.2f}"),
    "follows": ("follows", "{:.2f}"),
    "ssim": ("ssim", "{:.3f}"),
    "ssim_worst": ("worst", "{:.2f}"),
    "psnr": ("psnr", "{:.1f}"),
    "p50_s": ("p50 s", "{:.2f}"),
    "p95_s": ("p95 s", "{:.2f}"),
    "pictures_per_s": ("a second", "{:.2f}"),
    "device_s": ("device s", "{:.3f}"),
}


@tells
def evaluate(
    against: Annotated[
        Path | None, typer.Option(help="Folder of a reference; exit code 1 where anything is worse than it allows")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="A way to run the model, or all; again for more rows")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Four prompts in place of all")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures and a contact sheet")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Of the device, in any money")] = None,
    time_tolerance: Annotated[
        float | None, typer.Option(min=0, help="Also fail where times are worse by this share, on the same machine")
    ] = None,
    write_reference: Annotated[Path | None, typer.Option(help="Folder to keep this as a reference in")] = None,
    reason: Annotated[str, typer.Option(help="Why there is a new reference; kept in it")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Paint a fixed set of prompts in both pools; tell quality, times and cost, and what became worse."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a worker; read when torch is loaded
    if write_reference is not None and not (reason.strip() and not short and len(option or ()) <= 1):
        raise InvalidInput("--write-reference", "wants a --reason, the whole set and one option")
    if time_tolerance is not None and against is None:
        raise InvalidInput("--time-tolerance", "wants the reference to compare with: --against FOLDER")
    settings = load_settings()
    reference = _reference(settings, against)
    outcomes = _outcomes(settings, option or [], short, reference, time_tolerance)
    for outcome in outcomes:
        if out is not None:
            _write_pictures(outcome, out / outcome.option)
        if write_reference is not None:
            _keep(outcome, write_reference, reason)
    _tell(outcomes, against, price_per_hour, as_json)


def _tell(outcomes: Sequence[Outcome], against: Path | None, price_per_hour: float | None, as_json: bool) -> None:
    """Raises: typer.Exit with 1 where anything is worse than the reference that was asked for."""
    lines = [line for outcome in outcomes for line in outcome.lines]
    failed = against is not None and any(line.regressions for line in lines)
    if as_json:
        rows = [line.as_dict(price_per_hour) for line in lines]
        print_json({"against": None if against is None else str(against), "passed": not failed, "rows": rows})
    else:
        Console(width=max(WIDTH, Console().width)).print(_table(lines, price_per_hour))
        if against is not None:
            typer.echo(_verdict(lines) if failed else f"nothing is worse than {against} allows")
    if failed:
        raise typer.Exit(FAILED)


def _verdict(lines: Sequence[Line]) -> str:
    """What became worse by how much, and the picture to look at first."""
    said = ["worse than the reference:"]
    for line in lines:
        said += [f"{line.option} {one}" for one in line.regressions]
        if line.regressions and line.least_alike is not None:
            said.append(f"{line.option} {line.pool} least alike: {line.least_alike}")
    return "\n".join(said)


def _reference(settings: Settings, against: Path | None) -> Reference | None:
    """The one that was asked for, else the model's own if it has one that fits, for the columns of likeness."""
    from final_engine.gate.reference import SCORES, read_reference
    from final_engine.gate.report import REFERENCE
    from sampling.plan import folder_of
    from sampling.profile import load_profile

    model = load_profile(settings.model).model
    if against is not None:
        return read_reference(against, model)
    own = folder_of(settings.model) / REFERENCE
    if not (own / SCORES).exists():
        return None
    try:
        return read_reference(own, model)
    except FirstlightError as error:
        errors_to.print(f"not compared with the model's own reference: {error.message}", markup=False, soft_wrap=True)
        return None


def _outcomes(
    settings: Settings, names: list[str], short: bool, reference: Reference | None, time_tolerance: float | None
) -> list[Outcome]:
    from final_engine.gate.report import cases_of, chosen_options
    from final_engine.gate.report import evaluate as paint

    options, cases = chosen_options(names), cases_of(settings, short)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outcomes = []
    with Progress(*columns, console=errors_to, transient=True) as progress:
        task = progress.add_task("loading the model", total=2 * len(cases) * len(options))
        for option in options:
            progress.update(task, description=option.name)
            told = partial(progress.advance, task)
            outcomes.append(paint(settings, option, cases, reference, told, time_tolerance))
    return outcomes


def _table(lines: Sequence[Line], price_per_hour: float | None) -> Table:
    rows = [line.as_dict(price_per_hour) for line in lines]
    shown = {name: column for name, column in COLUMNS.items() if any(row.get(name) is not None for row in rows)}
    if price_per_hour is not None:
        shown["cost_per_picture"] = ("cost", "{:.2g}")
    table = Table("option", "pool", "n", *(title for title, _ in shown.values()), box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(row["option"], row["pool"], str(row["pictures"]), *(_cell(row, *item) for item in shown.items()))
    return table


def _cell(row: dict[str, Any], name: str, column: tuple[str, str]) -> str:
    value = row.get(name)
    return "" if value is None else column[1].format(value)


def _keep(outcome: Outcome, folder: Path, reason: str) -> None:
    from final_engine.gate.report import keep

    keep(outcome, folder, reason)
    errors_to.print(f"reference written to {folder}", markup=False)


def _write_pictures(outcome: Outcome, folder: Path) -> None:
    """One file a picture, and all of them on contact.png, previews first."""
    from PIL import Image

    from final_engine.gate.reference import COLUMNS as ACROSS
    from final_engine.gate.reference import sheet_of

    folder.mkdir(parents=True, exist_ok=True)
    pictures = outcome.pictures
    for name, picture in pictures.items():
        Image.fromarray(picture).save(folder / f"{name.replace('/', '-')}.png")
    if pictures:
        cell = max(max(picture.shape[:2]) for picture in pictures.values())
        sheet_of([*pictures.values()], cell, ACROSS).save(folder / "contact.png")
