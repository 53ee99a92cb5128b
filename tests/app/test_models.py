"""`firstlight models`: list, pull and check, as a person types them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from app.cli import app
from core.settings import BUNDLED_MODEL
from sampling.needs import needs_of
from sampling.plan import PROFILES, describe, profile_names, profile_path
from sampling.profile import load_profile
from tests.asking import firstlight
from tests.conftest import ROOT
from tests.hub_server import HubServer

run = CliRunner().invoke
DOCS = ROOT / "docs" / "models.md"
SDXL = describe(PROFILES / "sdxl.json")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """Repositories with the right names in them; what is fetched is not looked into, but for its checksum."""
    repositories = {}
    for name, needs in needs_of(SDXL).items():
        folder = tmp_path / "served" / name
        for part in needs.folders:
            (folder / part).mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "model.fp16.safetensors", "model.safetensors", "vocab.json", "merges.txt"):
                (folder / part / file).write_bytes(f"{name} {part} {file} ".encode() * 1000)
        for file in needs.files:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("{}")
        repositories[str(SDXL.sources[name].hub)] = (folder, SDXL.sources[name].revision)
    with HubServer(repositories) as server:
        yield server


def settings(tmp_path: Path, url: str) -> dict[str, str]:
    return {"HF_ENDPOINT": url, "HF_HUB_CACHE": str(tmp_path / "cache"), "FIRSTLIGHT_DATA_DIR": str(tmp_path)}


def test_pull_shows_licences_then_fetches_and_list_knows_it(hub: HubServer, tmp_path: Path) -> None:
    env = settings(tmp_path, hub.url)
    before = json.loads(firstlight("models", "list", "--json", **env).stdout)["models"]
    assert {facts["id"]: facts["here"] for facts in before}["sdxl"] is False
    done = firstlight("models", "pull", "sdxl", "--yes", "--json", **env)
    assert done.returncode == 0, done.stderr
    assert "not free for commercial use: stabilityai/sdxl-turbo" in done.stderr and "Non-Commercial" in done.stderr
    folders = json.loads(done.stdout)["folders"]
    assert set(folders) == set(hub.repositories) and all(Path(folder).is_dir() for folder in folders.values())
    assert not any(name.endswith("/model.safetensors") for name in hub.fetched() if "/" in name)
    after = json.loads(firstlight("models", "list", "--json", **env).stdout)["models"]
    assert {facts["id"]: (facts["here"], facts["commercial"]) for facts in after}["sdxl"] == (True, "NO")


def test_pull_fetches_nothing_before_the_licences_are_accepted(hub: HubServer, tmp_path: Path) -> None:
    done = firstlight("models", "pull", "sdxl", **settings(tmp_path, hub.url))
    assert done.returncode == 1 and "--yes" in done.stderr and "Open RAIL++-M" in done.stderr
    assert not hub.fetched() and not (tmp_path / "cache").exists()


def test_pull_without_a_hub_tells_what_can_be_done(tmp_path: Path) -> None:
    done = firstlight("models", "pull", "sdxl-lcm", "--yes", **settings(tmp_path, "http://127.0.0.1:9"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for words in ("http://127.0.0.1:9", "HF_ENDPOINT", "--from FOLDER", "storybook"):
        assert words in done.stderr


def test_pull_from_a_carried_folder_needs_no_hub(hub: HubServer, tmp_path: Path) -> None:
    for hub_id, (folder, _) in hub.repositories.items():
        place = tmp_path / "carried" / hub_id
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder)
    env = settings(tmp_path, "http://127.0.0.1:9")
    done = firstlight("models", "pull", "sdxl", "--yes", "--from", str(tmp_path / "carried"), **env)
    assert done.returncode == 2 and "is not safetensors" in done.stderr  # what is carried is looked into
    missing = firstlight("models", "pull", "sdxl", "--yes", "--from", str(tmp_path / "served"), **env)
    assert missing.returncode == 2 and "does not hold stabilityai/" in missing.stderr


@pytest.mark.parametrize("name", ["storybook", "nonsense", "no/such/thing"])
def test_pull_refuses_what_cannot_be_fetched(name: str) -> None:
    told = run(app, ["models", "pull", name, "--yes", "--json"])
    assert told.exit_code == 1 and json.loads(told.stdout)["error"]["field"] == "profile"


def test_list_and_check_are_tables_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FIRSTLIGHT_")]:
        monkeypatch.delenv(name)
    listed = run(app, ["models", "list"])
    assert listed.exit_code == 0 and all(name in listed.output for name in ("storybook", "sdxl", "sdxl-lcm", "flux"))
    checked = run(app, ["models", "check"])
    assert (
        checked.exit_code == 0
        and f"storybook@{load_profile(BUNDLED_MODEL).version} is whole" in checked.output
        and "GB as float32" in checked.output
    )


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_documented_with_what_its_licences_allow(name: str) -> None:
    path = profile_path(name)
    assert path is not None
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}`"))
    barred = any(source.commercial is False for source in describe(path).sources.values())
    assert ("**no**" in row) == barred


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weight: weight * torch.nan, "conv_out.bias of unet holds values that are not finite"),
        (lambda weight: weight[:-1], "conv_out.bias of unet is 7, its config says 8"),
        (None, "lacks 1 weights of unet, the first conv_out.bias"),
    ],
)
def test_check_reads_every_weight(bundle: Path, tmp_path: Path, change: Any, words: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(bundle, model)
    path = model / "unet/diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    bias = weights.pop("conv_out.bias")
    save_file(weights if change is None else {**weights, "conv_out.bias": change(bias)}, path)
    told = run(app, ["models", "check", str(model), "--json"])
    assert told.exit_code == 2 and words in json.loads(told.stdout)["error"]["message"]


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    told = run(app, ["models", "check", str(tmp_path), "--json"])
    assert told.exit_code == 2 and "model_index.json" in json.loads(told.stdout)["error"]["message"]
