"""What a broken model folder is told, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import StartupError
from core.profile import Bucket
from core.recipe import Sampler
from sampling.profile import load_profile


@pytest.fixture
def folder(bundle: Path, tmp_path: Path) -> Path:
    """The bundle by links, so that a test can replace single files."""
    for path in bundle.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(bundle)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    return tmp_path


def replace_file(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def test_profile_reads_the_bundle(bundle: Path) -> None:
    profile = load_profile(bundle)
    assert profile.id == "storybook"
    assert profile.final.buckets[0] == Bucket(128, 128)
    assert len(profile.final.buckets) <= 5
    assert profile.preview.sampler is Sampler.EULER  # it adds no noise: previews end where finals do
    assert profile.limits.max_side == 152
    assert profile.final.guidance_scale > 1


BREAKS: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "missing weights": ("unet/diffusion_pytorch_model.safetensors", lambda _: None),
    "missing config": ("vae/config.json", lambda _: None),
    "missing tokenizer": ("tokenizer_2/tokenizer.json", lambda _: None),
    "missing adapter": ("preview_lcm.safetensors", lambda _: None),
    "cut short": ("text_encoder/model.safetensors", lambda data: data[:-10]),
    "hundred bytes": ("vae/diffusion_pytorch_model.safetensors", lambda _: b"x" * 100),
    "empty": ("vae/diffusion_pytorch_model.safetensors", lambda _: b""),
    "huge header": ("unet/diffusion_pytorch_model.safetensors", lambda data: b"\xff" * 8 + data[8:]),
    "lfs pointer": (
        "unet/diffusion_pytorch_model.safetensors",
        lambda _: b"version https://git-lfs.github.com/spec/v1",
    ),
    "not json": ("storybook.json", lambda _: b"{"),
    "not an object": ("storybook.json", lambda _: b"[]"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_profile_names_the_broken_file_and_what_to_do(folder: Path, name: str) -> None:
    relative, change = BREAKS[name]
    path = folder / relative
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(StartupError) as caught:
        load_profile(folder)
    assert relative.split("/")[0] in caught.value.cause
    assert ("git lfs pull" in caught.value.remedy) == (name == "lfs pointer")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buckets", []),
        ("buckets", [[128]]),
        ("buckets", [[0, 0]]),
        ("buckets", [[-8, -8]]),
        ("buckets", [[60, 64]]),
        ("buckets", [[128.5, 128]]),
        ("buckets", [[10**6, 10**6]]),
        ("buckets", [[128, 128], [128, 128]]),
        ("buckets", [[128, 128 + 8 * i] for i in range(6)]),
        ("preview", {"sampler": "nope"}),
        ("id", None),
        ("id", "../x"),
        ("id", "a@b"),
        ("version", "a\n"),
        ("limits", {"nope": 1}),
        ("limits", {"max_side": 0}),
        ("limits", {"max_steps": "many"}),
        ("limits", {"max_seed": 2**64}),
    ],
)
def test_profile_names_its_own_file_when_a_field_is_wrong(folder: Path, key: str, value: object) -> None:
    path = folder / "storybook.json"
    fields = json.loads(path.read_text())
    fields[key] = value
    if value is None:
        del fields[key]
    replace_file(path, json.dumps(fields).encode())
    with pytest.raises(StartupError, match=r"storybook\.json"):
        load_profile(folder)


@pytest.mark.parametrize("pool", ["preview", "final"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("steps", -1), ("steps", 1001), ("steps", 2.5), ("guidance_scale", -1), ("guidance_scale", 1e9),
     ("guidance_scale", float("nan"))],
)  # fmt: skip
def test_profile_whose_own_choice_would_be_refused_is_refused(
    folder: Path, pool: str, field: str, value: object
) -> None:
    path = folder / "storybook.json"
    fields = json.loads(path.read_text())
    fields[pool][field] = value
    replace_file(path, json.dumps(fields).encode())
    with pytest.raises(StartupError, match=r"storybook\.json"):
        load_profile(folder)


def test_profile_needs_no_torch() -> None:
    code = "import sys, sampling.profile; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
