"""`firstlight bench`: what this machine does, measured."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.output import errors_to, print_json, spinner, tells
from core.cost import CostTable, Part
from core.memory import HEADROOM
from core.settings import Settings, load_settings

bench = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Measure this machine."""


@bench.command("calibrate")
@tells
def calibrate(
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Times that each shape is measured; the median stands")
    ] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure what every part of a render takes here, so that promised times hold.

    Writes costs.json into the data folder; workers read it when they start. Stop other work on the machine first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a worker; read when torch is loaded
    settings = load_settings()
    from final_engine.cost_file import write_costs

    identity, table = _measure(settings, rounds)
    path = write_costs(settings.data_dir, identity, table)
    if as_json:
        return print_json({"path": str(path), "identity": str(identity), **table.to_dict()})
    Console().print(_steps(table))
    Console().print(_rest(table))
    typer.echo(f"measured with {identity}\nwritten to {path}")


@bench.command("memory")
@tells
def memory(
    headroom: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the memory to leave for what is not measured")
    ] = HEADROOM,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure the most memory that this machine needs, and how many rows it has room for.

    Runs the longest prompt in the largest size. Writes memory.json into the data folder; workers that start read it and
    take no more rows than fit.
    """
    settings = load_settings()
    from final_engine.memory import measure, write_plan

    with spinner("measuring"):
        identity, plan = measure(settings, headroom)
    path = write_plan(settings.data_dir, identity, plan)
    if as_json:
        return print_json({"path": str(path), "identity": str(identity), **plan.as_dict()})
    table = Table("memory, MiB", "", box=None)
    for name, size in (("loaded", plan.base_bytes), ("a row", plan.row_bytes), ("may be used", plan.budget_bytes)):
        table.add_row(name, f"{size / 2**20:.0f}")
    Console().print(table)
    asked = max(settings.max_preview_rows, settings.max_final_rows)
    typer.echo(f"room for {plan.rows} rows of the {asked} that are allowed, measured with {identity}")
    typer.echo(f"written to {path}")


def _measure(settings: Settings, rounds: int) -> tuple[Any, CostTable]:
    from final_engine.calibrate import calibrate as samples_of
    from final_engine.calibrate import identity_of, open_bench, samples_of_a_round, table_of

    errors_to.print("loading the model")
    parts = open_bench(settings)
    profile, max_rows = parts.model.profile, settings.max_final_rows
    total = rounds * samples_of_a_round(profile, max_rows)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors_to, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        samples = []
        for sample in samples_of(parts, max_rows, rounds):
            samples.append(sample)
            progress.update(task, advance=1, description=f"{sample.part} {sample.bucket} x {sample.count}")
    return identity_of(parts.model), table_of(samples)


def _steps(table: CostTable) -> Table:
    """Milliseconds of one step, a line for each size."""
    by_bucket = table.seconds[Part.STEP]
    counts = sorted({count for known in by_bucket.values() for count in known})
    shown = Table("one step, ms", *(f"{count} rows" if count > 1 else "1 row" for count in counts), box=None)
    for bucket, known in by_bucket.items():
        shown.add_row(bucket, *(f"{1000 * known[count]:.1f}" for count in counts))
    return shown


def _rest(table: CostTable) -> Table:
    shown = Table("the rest, ms", "one", "four", box=None)
    for bucket, known in table.seconds[Part.DECODE].items():
        shown.add_row(f"decode {bucket}", f"{1000 * known[1]:.1f}", f"{1000 * known[max(known)]:.1f}")
    for part in (Part.ENCODE, Part.SAFETY, Part.PUBLISH):
        shown.add_row(part.value, f"{1000 * table.of(part):.1f}", "")
    return shown
