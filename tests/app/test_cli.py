"""The command line: help, JSON, exit codes, and starting up badly."""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from app import verbs
from app.cli import app
from app.client import Client
from app.fleet import row_of
from app.output import numbered, print_rows, write_picture
from app.roles import ROLES
from app.verbs import _named_as_options, parse_styles
from benchmarks.network import free_port
from core.errors import InvalidInput, Unavailable
from core.render import State
from sampling.picture import to_jpeg
from tests.app.conftest import Web
from tests.asking import firstlight

run = CliRunner().invoke


def png(width: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, 8), "red").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def here(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with FIRSTLIGHT_URL at the test server, whose roles are all warm."""
    monkeypatch.setenv("FIRSTLIGHT_URL", web.url)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def warm(web: Web) -> Iterator[None]:
    web.context.registry.announce("warm", {**web.model, "roles": ROLES, "ready": True}, 60)
    yield
    web.context.registry.withdraw("warm")


@pytest.mark.parametrize("verb", ["", "serve", "worker", "preview", "render", "styles", "models", "workers", "bench"])
def test_help_reads_without_markup_or_missing_words(verb: str) -> None:
    told = run(app, [*filter(None, [verb]), "--help"])
    assert told.exit_code == 0
    assert "--exit-with-parent" not in told.output
    if not verb:
        for word in ("serve", "worker", "preview", "render", "styles", "models", "workers", "bench"):
            assert word in told.output


@pytest.mark.parametrize("width", [200, 80, 20])
def test_rows_are_whole_on_any_terminal(width: int) -> None:
    ids = [f"firstlight-preview-6d5f7b9c4-abcde-{pid}-a1b2c3" for pid in (7, 8)]
    console = Console(width=width, record=True, file=io.StringIO())
    print_rows(["worker", "roles"], [(one, "preview, [final], decode, finish") for one in ids], console)
    told = console.export_text()
    assert all(one in told for one in ids) and told.count("preview, [final], decode, finish") == 2


def test_version_is_told() -> None:
    assert run(app, ["--version"]).output == f"firstlight {version('firstlight')}\n"


@pytest.mark.parametrize(("verb", "key"), [("styles", "styles"), ("models", "final")])
def test_lists_are_one_json_object_with_and_without_a_server(
    here: Path, monkeypatch: pytest.MonkeyPatch, verb: str, key: str
) -> None:
    served = run(app, [verb, "--json"])
    monkeypatch.delenv("FIRSTLIGHT_URL")
    alone = run(app, [verb, "--json"])
    assert json.loads(served.stdout) == json.loads(alone.stdout)
    assert key in json.loads(alone.stdout)
    assert run(app, [verb]).exit_code == 0


A_WORKER = {
    "roles": ["preview", "final"],
    "ready": ["final"],
    "model": "storybook",
    "version": "0",
    "device": "cuda:0",
    "dtype": "float16",
    "styles": ["ink"],
    "fused": None,
}


def test_render_that_outlives_its_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(client: object, render_id: str) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(verbs, "_show", away)
    with pytest.raises(Unavailable, match=r"no answer; the render is not lost: .* http://here/sub/api/v1/renders/abc$"):
        verbs._followed(Client("http://here/sub/"), "abc")


def test_workers_are_shown_with_what_they_do(web: Web, here: Path) -> None:
    assert "no worker lives" in run(app, ["workers"]).output
    web.context.registry.announce("one", {**A_WORKER, "started_s": web.context.clock() - 7300})
    assert json.loads(run(app, ["workers", "--json"]).stdout)["workers"][0]["id"] == "one"
    told = [run(app, ["workers"], env={"COLUMNS": width}) for width in ("200", "40")]
    web.context.registry.withdraw("one")
    for words in ("one", "preview, final", "storybook 0", "cuda:0 float16", "ink", "2 h", "0 s ago"):
        assert all(words in one.output for one in told)
    wide, narrow = (len(one.output.splitlines()) for one in told)
    assert wide == 2 < narrow


def test_worker_with_another_model_is_pointed_out() -> None:
    found = {"model": "storybook", "version": "1", "now_s": 90.0}
    row = row_of({"id": "one", **A_WORKER, "started_s": 0.0, "seen_s": 88.5}, found)
    assert row[2:] == ["final", "storybook 0 (not the server's)", "cuda:0 float16", "ink", "1 min", "1 s ago"]
    dedicated = {"id": "one", **A_WORKER, "fused": "ink:0.8", "started_s": 0.0, "seen_s": 88.5}
    assert row_of(dedicated, found)[5] == "ink:0.8 alone"
    assert row_of({**dedicated, "ready": [], "draining": True}, found)[2] == "ends"


def test_workers_without_a_server_say_how_to_start_one(tmp_path: Path) -> None:
    told = firstlight("workers", FIRSTLIGHT_DATA_DIR=str(tmp_path))
    assert told.returncode == 1 and "firstlight serve" in told.stderr


def test_preview_writes_the_picture(web: Web, here: Path, warm: None) -> None:
    threading.Thread(target=lambda: web.pool.answer(web.pool.take(), png())).start()
    done = run(app, ["preview", "a cat", "-o", "p.png", "--seed", "7", "--style", "ink:0.5", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["seed"], told["file"]) == (7, "p.png") and "image_b64" not in told
    assert (here / "p.png").read_bytes() == png()


def test_preview_saved_as_png_carries_its_recipe(web: Web, here: Path, warm: None) -> None:
    jpeg = to_jpeg(np.zeros((8, 8, 3), np.uint8))
    threading.Thread(target=lambda: web.pool.answer(web.pool.take(), jpeg)).start()
    done = run(app, ["preview", "a cat", "--seed", "7", "--style", "ink:0.5", "--steps", "2", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["file"] == "firstlight-7.png"
    carried = Image.open(here / told["file"]).text  # type: ignore[attr-defined]
    assert json.loads(carried["firstlight"]) == {**told["recipe"], "pool": "preview"}
    assert told["recipe"]["prompt"] == "a cat" and told["recipe"]["styles"] == [{"id": "ink", "weight": 0.5}]
    assert carried["parameters"].startswith("a cat\nSteps: 2, ")


def finish_next(web: Web, state: State, **fields: Any) -> None:
    """Plays the final pool for the newest render that is not finished."""
    while not (found := web.context.renders.history("local", 1)) or found[0].state is not State.QUEUED:
        pass
    record = web.context.renders.claim(found[0].id, 3)
    assert record is not None
    images = []
    if state is State.DONE:
        for index in range(record.n):
            key = f"renders/{record.id}/{index}.png"
            web.context.objects.put(key, png(), "image/png")
            images.append({"key": key, "sha256": "0", "seed": record.recipe.seed + index, "width": 8, "height": 8})
    web.context.renders.finish(record.id, record.attempt, state, images=images, **fields)


def test_render_writes_every_picture(web: Web, here: Path, warm: None) -> None:
    for old in web.context.renders.unfinished():
        web.context.renders.cancel(old.id)
    threading.Thread(target=finish_next, args=(web, State.DONE)).start()
    done = run(app, ["render", "a cat", "--seed", "7", "-n", "2", "-o", "r.png", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["state"] == "done" and told["files"] == ["r-1.png", "r-2.png"]
    assert (here / "r-2.png").read_bytes() == png()


@pytest.mark.parametrize("verb", ["preview", "render"])
def test_picture_that_cannot_be_written_is_told(web: Web, here: Path, warm: None, verb: str) -> None:
    """A disk that is full by then; the render is not lost with its file."""
    for old in web.context.renders.unfinished():
        web.context.renders.cancel(old.id)
    (here / "full.png").symlink_to("/dev/full")
    plays = {"preview": lambda: web.pool.answer(web.pool.take(), png()), "render": lambda: finish_next(web, State.DONE)}
    threading.Thread(target=plays[verb]).start()
    done = run(app, [verb, "a cat", "-o", "full.png"])
    assert done.exit_code == 1
    assert "full.png cannot be written: No space left on device" in done.stderr
    assert ("/api/v1/renders/" in done.stderr) == (verb == "render")


def test_render_that_ends_badly_is_told_and_exits_1(web: Web, here: Path, warm: None) -> None:
    for old in web.context.renders.unfinished():
        web.context.renders.cancel(old.id)
    error = {"code": "withheld", "message": "the picture was withheld"}
    threading.Thread(target=finish_next, args=(web, State.BLOCKED), kwargs={"error": error}).start()
    done = run(app, ["render", "a cat", "-o", "r.png", "--json"])
    assert done.exit_code == 1
    assert "the picture was withheld" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "withheld"
    assert not (here / "r.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["preview", ""], "prompt"),
        (["preview", "a", "--width", "3"], "width"),
        (["render"], "prompt"),
        (["render", "a", "--sampler", "x"], "euler"),
        (["render", "a", "--handoff", "x"], "balanced"),
        (["render", "a", "--style", "ink:x"], "ink:0.8"),
        (["render", "a", "--guidance", "nan"], "--guidance: "),
        (["render", "a", "--deadline", "inf"], "--deadline: "),
        (["preview", "a", "--style", "ink:nan"], "number"),
        (["preview", "a\udcff"], "Unicode"),
        (["preview", "a", "--style", "\udcff"], "style"),
        (["render", "a", "-o", "r.gif"], ".png"),
        (["render", "a", "-o", "nowhere/r.png"], "nowhere"),
        (["preview", "a", "-o", "folder.png"], "folder"),
        (["preview", "a", "-o", "n" * 300 + ".png"], "too long"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_1(here: Path, warm: None, arguments: list[str], words: str) -> None:
    (here / "folder.png").mkdir()
    done = run(app, arguments)
    assert done.exit_code == 1
    assert words in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    told = json.loads(run(app, [*arguments, "--json"]).stdout)
    assert words in told["error"]["message"]


def test_named_server_that_is_not_there_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_URL", f"http://127.0.0.1:{free_port()}")
    done = run(app, ["styles"])
    assert done.exit_code == 1 and "FIRSTLIGHT_URL" in done.stderr


def test_style_that_cannot_be_used_is_named_with_its_reason(tmp_path: Path, bundle: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(bundle, model)
    file = model / "styles" / "ink.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    listing = model / "styles" / "styles.json"
    listing.write_text(listing.read_text().replace('"licence"', '"license"', 1))
    done = firstlight("styles", FIRSTLIGHT_DATA_DIR=str(tmp_path / "data"), FIRSTLIGHT_MODEL=str(model))
    assert done.returncode == 0 and "noto" in done.stdout and "ink" not in done.stdout
    assert "left out: ink (ink.safetensors)" in done.stderr and "cut off" in done.stderr
    assert 'did you mean "licence"?' in done.stderr
    missing = firstlight("styles", FIRSTLIGHT_DATA_DIR=str(tmp_path / "data"), FIRSTLIGHT_MODEL=str(tmp_path / "no"))
    assert missing.returncode == 2 and "what to do" in missing.stderr


@pytest.mark.parametrize(("field", "option"), [("styles.0.id", "--style"), ("n", "--images"), ("width", "--width")])
def test_what_a_server_refuses_is_named_as_it_was_typed(field: str, option: str) -> None:
    with pytest.raises(InvalidInput) as told, _named_as_options():
        raise InvalidInput(field, "is wrong")
    assert (told.value.message, told.value.field) == (f"{option}: is wrong", field)


def test_styles_are_read_with_and_without_weight() -> None:
    assert parse_styles(["ink", "noto:0.8"]) == [{"id": "ink"}, {"id": "noto", "weight": 0.8}]
    with pytest.raises(InvalidInput):
        parse_styles(["ink:"])


def test_several_pictures_are_numbered() -> None:
    assert numbered(Path("a/b.png"), 1) == [Path("a/b.png")]
    assert numbered(Path("a/b.png"), 2) == [Path("a/b-1.png"), Path("a/b-2.png")]


def test_picture_is_converted_only_where_the_name_asks_for_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", png())
    write_picture(tmp_path / "a.jpg", png())
    assert (tmp_path / "a.png").read_bytes() == png()
    assert Image.open(tmp_path / "a.jpg").format == "JPEG"


@pytest.mark.parametrize(
    "arguments", [["render"], ["render", "a", "--sampler", "x"], ["render", "a", "--handoff", "x"]]
)
def test_what_needs_no_server_is_told_before_one_is_started(here: Path, arguments: list[str]) -> None:
    done = run(app, arguments)
    assert done.exit_code == 1 and "starting one" not in done.stderr
