"""`firstlight export`: the model for servers other than ours."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.output import print_json, spinner, tells
from core.settings import load_settings

export = typer.Typer(name="export", help="Write the model for other servers.", no_args_is_help=True)


class Precision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@export.callback()
def _group() -> None:
    """Write the model for other servers."""


@export.command("triton")
@tells
def triton(
    folder: Annotated[Path, typer.Argument(help="The model repository to write into", show_default=False)],
    served_dir: Annotated[
        str | None, typer.Option(help="Where Triton finds the model's folder; nothing is copied then")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu/--cpu", help="What encoder, network and decoder run on")] = True,
    dtype: Annotated[Precision | None, typer.Option(help="Default: float16 on a GPU, else float32")] = None,
    rows: Annotated[int, typer.Option(min=1, max=64, help="Renders at once, and in one forward")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a model repository for a Triton Inference Server: encode, denoise, decode, and the render over them.

    Triton's Python needs Firstlight installed. docs/triton.md says how, and what was not tried.
    """
    from final_engine.triton.repository import Serving, write_repository
    from sampling.plan import folder_of

    settings = load_settings()
    chosen = dtype or (Precision.FLOAT16 if gpu else Precision.FLOAT32)
    serving = Serving(gpu, chosen.value, rows, settings.nsfw_threshold)
    with spinner("writing the repository"):
        written = write_repository(folder, folder_of(settings.model), serving, served_dir)
    if as_json:
        return print_json({"folder": str(folder), "files": [str(path) for path in written]})
    for path in written:
        typer.echo(path)
    typer.echo(f"serve it with: tritonserver --model-repository {folder.resolve()}")
