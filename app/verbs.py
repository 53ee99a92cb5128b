"""`firstlight preview` and `firstlight render`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from app.client import Client, failure_of
from app.output import check_output, errors_to, numbered, print_json, spinner, tells, write_picture
from app.recipes import choice
from app.temporary import server
from core.errors import FirstlightError, InvalidInput, Unavailable
from core.recipe import Handoff, Recipe, Sampler
from core.settings import load_settings

Seed = Annotated[int | None, typer.Option(help="Same seed, same picture; a random one when left out")]
Width = Annotated[int | None, typer.Option(help="Pixels; firstlight models lists the sizes")]
Height = Annotated[int | None, typer.Option(help="Pixels")]
Styles = Annotated[
    list[str] | None, typer.Option("--style", help="A style, with a weight if you like: ink or ink:0.8; again for more")
]
Negative = Annotated[str | None, typer.Option("--negative", help="What should not be in the picture")]
OPTIONS = {  # what a field of the API is here
    "styles": "--style",
    "n": "--images",
    "deadline_s": "--deadline",
    "guidance_scale": "--guidance",
    "negative_prompt": "--negative",
    "preview_id": "--preview-id",
    **{name: f"--{name}" for name in ("seed", "width", "height", "steps", "sampler", "handoff")},
}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@tells
def preview(
    prompt: Annotated[str, typer.Argument(help="What to see", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write (firstlight-SEED.png)")] = None,
    seed: Seed = None,
    width: Width = None,
    height: Height = None,
    style: Styles = None,
    negative: Negative = None,
    steps: Annotated[int | None, typer.Option(help="Steps, 1…8")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a quick picture of a text. Uses the server that runs, or starts one for the moment."""
    check_output(output)
    asked = {"seed": seed, "width": width, "height": height, "negative_prompt": negative, "steps": steps}
    fields = {"prompt": prompt, "styles": parse_styles(style), **_given(asked)}
    with _named_as_options(), _server() as client, spinner("making the preview"):
        made = client.preview(fields)
    path = output or Path(f"firstlight-{made['seed']}.png")
    write_picture(path, base64.b64decode(made.pop("image_b64")), Recipe.from_dict(made["recipe"]))
    if as_json:
        return print_json({**made, "file": str(path)})
    typer.echo(f"{path}  {made['width']}x{made['height']}, seed {made['seed']}")


@tells
def render(
    prompt: Annotated[
        str | None, typer.Argument(help="What to see; not needed with --preview-id", show_default=False)
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write (firstlight-SEED.png)")] = None,
    seed: Seed = None,
    width: Width = None,
    height: Height = None,
    style: Styles = None,
    negative: Negative = None,
    steps: Annotated[int | None, typer.Option(help="Steps: more take longer and draw more")] = None,
    guidance: Annotated[float | None, typer.Option(help="How closely the text is followed")] = None,
    sampler: Annotated[str | None, typer.Option(help="euler, euler_a, dpmpp_2m, ddim or lcm")] = None,
    images: Annotated[int, typer.Option("-n", "--images", help="Pictures of neighbouring seeds, 1…4")] = 1,
    preview_id: Annotated[str | None, typer.Option(help="Follow this preview")] = None,
    handoff: Annotated[str | None, typer.Option(help="How to follow it: match, balanced or fresh")] = None,
    deadline: Annotated[float | None, typer.Option(help="Refuse it if it takes longer, in seconds")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the full picture. Ctrl+C cancels it."""
    check_output(output)
    _check_names(prompt, preview_id, sampler, handoff)
    asked = {
        "prompt": prompt,
        "seed": seed,
        "width": width,
        "height": height,
        "negative_prompt": negative,
        "steps": steps,
        "guidance_scale": guidance,
        "sampler": sampler,
        "preview_id": preview_id,
        "handoff": handoff,
        "deadline_s": deadline,
        "styles": parse_styles(style) if style else None,
    }
    with _named_as_options(), _server() as client:
        record = _followed(client, client.render({**_given(asked), "n": images})["id"])
        paths = numbered(output or Path(f"firstlight-{record['recipe']['seed']}.png"), len(record["images"]))
        for path, image in zip(paths, record["images"], strict=True):
            _kept(client, record["id"], path, image["url"])
    if as_json:
        return print_json({**record, "files": [str(path) for path in paths]})
    for path, image in zip(paths, record["images"], strict=True):
        typer.echo(f"{path}  {image['width']}x{image['height']}, seed {image['seed']}")


def _check_names(prompt: str | None, preview_id: str | None, sampler: str | None, handoff: str | None) -> None:
    """What needs no server to be found wrong, before one is started. Raises: InvalidInput."""
    if prompt is None and preview_id is None:
        raise InvalidInput("prompt", "is required without --preview-id")
    if sampler is not None:
        choice(Sampler, sampler, "--sampler")
    if handoff is not None:
        choice(Handoff, handoff, "--handoff")


@contextmanager
def _named_as_options() -> Iterator[None]:
    """Who typed --style is not told of styles.0.id."""
    try:
        yield
    except FirstlightError as error:
        field = error.field or ""
        option = OPTIONS.get(field.partition(".")[0])
        if option is not None and error.message.startswith(f"{field}: "):
            error.message = f"{option}: {error.message.removeprefix(f'{field}: ')}"
        raise


@contextmanager
def _server() -> Iterator[Client]:
    with ExitStack() as stack:
        with spinner("looking for a server") as say:
            client = stack.enter_context(server(load_settings(), say))
        yield client


def _followed(client: Client, render_id: str) -> dict[str, Any]:
    """The record when it is done.

    Raises: Refused when it ends otherwise; Unavailable, with its address, when the server goes away; KeyboardInterrupt
    cancels it first.
    """
    try:
        record = _show(client, render_id)
    except KeyboardInterrupt:
        client.cancel(render_id)
        raise
    except Unavailable as error:
        where = _address(client, render_id)
        raise Unavailable(
            f"{error.message}; the render is not lost: once the server is back, look at {where}"
        ) from None
    if (failure := failure_of(record)) is not None:
        raise failure
    return record


def _kept(client: Client, render_id: str, path: Path, url: str) -> None:
    """Raises: InvalidInput, with the render's address, when the file cannot be written."""
    picture = client.picture(url)
    try:
        write_picture(path, picture)
    except InvalidInput as error:
        where = _address(client, render_id)
        raise InvalidInput(
            "--output", f"{error.message.removeprefix('--output: ')}; the picture is not lost: see {where}"
        ) from error


def _address(client: Client, render_id: str) -> str:
    return f"{client.url.rstrip('/')}/api/v1/renders/{render_id}"


def _show(client: Client, render_id: str) -> dict[str, Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    record: dict[str, Any] = {}
    with Progress(*columns, console=errors_to, transient=True) as progress:
        task = progress.add_task("queued", total=None)
        for record in client.follow(render_id):
            done = record["progress"]
            place = f", place {record['position']}" if record["position"] else ""
            progress.update(task, description=record["state"] + place, completed=done["step"], total=done["steps"])
    return record


def parse_styles(texts: list[str] | None) -> list[dict[str, Any]]:
    """Raises: InvalidInput for a weight that is no number."""
    uses = []
    for text in texts or ():
        name, colon, weight = text.partition(":")
        try:
            uses.append({"id": name, "weight": float(weight)} if colon else {"id": name})
        except ValueError:
            raise InvalidInput("--style", "the weight behind the colon must be a number, as in ink:0.8") from None
    return uses


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
