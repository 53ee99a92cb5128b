from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from benchmarks.bundle import Parts, run
from core.errors import InvalidInput, StartupError
from final_engine.triton.repository import SPECS, Serving, write_repository
from sampling.picture import Pixels
from tests.final_engine.triton_server import InferenceResponse, Server, backend_utils, read_config

PROMPT, SEED, STEPS, GUIDANCE = "a cat on the beach", 5, 3, 3.0
SERVING = Serving(gpu=False, dtype="float32", rows=4, nsfw_threshold=0.85)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Path:
    folder = tmp_path_factory.mktemp("triton") / "models"
    write_repository(folder, bundle, SERVING)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "triton_python_backend_utils", backend_utils())
        yield Server(repository)


def text(value: str) -> np.ndarray:
    return np.array([value.encode()], dtype=np.object_)


def render(server: Server, prompt: str = PROMPT, **inputs: np.ndarray) -> InferenceResponse:
    asked = {
        "PROMPT": text(prompt),
        "SEED": np.array([SEED], np.int64),
        "STEPS": np.array([STEPS], np.int32),
        "GUIDANCE_SCALE": np.array([GUIDANCE], np.float32),
        **inputs,
    }
    return server.infer("firstlight", [server.request("firstlight", **asked)])[0]


def painted(parts: Parts) -> Pixels:
    """The same recipe through the product's own step loop."""
    row = parts.row("final", "own", PROMPT, SEED)
    row.steps, row.guidance_scale, row.negative = STEPS, GUIDANCE, parts.encoder.encode("")
    run(parts.final, [row])
    picture: Pixels = parts.decoder.decode(row.latents[None])[0]
    return picture


def test_a_render_is_the_picture_that_the_product_paints(server: Server, parts: Parts) -> None:
    response = render(server)
    assert not response.has_error()
    picture = response.outputs[0].as_numpy()
    assert picture.shape == (128, 128, 3)
    assert np.abs(picture.astype(int) - painted(parts)).max() <= 1
    assert server.calls["firstlight_denoise"] == [1] * STEPS


def test_steps_of_several_renders_share_a_forward_and_change_nothing(server: Server) -> None:
    def step(sigma: float, timestep: int, seed: int) -> dict[str, np.ndarray]:
        encoded = server.infer("firstlight_encode", [server.request("firstlight_encode", TEXT=text(PROMPT))])[0]
        embeds, pooled = (tensor.as_numpy() for tensor in encoded.outputs)
        latents = np.random.default_rng(seed).normal(size=(1, 8, 16, 16)).astype(np.float32)
        return {
            "LATENTS": latents * sigma,
            "SIGMA": np.array([[sigma]], np.float32),
            "TIMESTEP": np.array([[timestep]], np.float32),
            "GUIDANCE_SCALE": np.array([[GUIDANCE]], np.float32),
            "EMBEDS": embeds,
            "POOLED": pooled,
            "NEGATIVE_EMBEDS": np.zeros_like(embeds),
            "NEGATIVE_POOLED": np.zeros_like(pooled),
        }

    requests = [server.request("firstlight_denoise", **step(*at)) for at in ((14.6, 999, 1), (1.6, 499, 2))]
    together = [response.outputs[0].as_numpy() for response in server.infer("firstlight_denoise", requests)]
    alone = [server.infer("firstlight_denoise", [request])[0].outputs[0].as_numpy() for request in requests]
    assert all(np.abs(a - b).max() < 1e-3 for a, b in zip(together, alone, strict=True))
    assert np.abs(together[0] - together[1]).max() > 0.01


@pytest.mark.parametrize(
    ("prompt", "inputs", "said"),
    [
        (" ", {}, "prompt: must not be empty"),
        (PROMPT, {"STEPS": np.array([1001], np.int32)}, "steps: must be a whole number"),
        (PROMPT, {"WIDTH": np.array([100000], np.int32)}, "width: must be a whole number"),
        ("a nude woman", {}, "asks for explicit sexual content"),
    ],
)
def test_what_the_product_refuses_is_refused_before_any_step(
    server: Server, prompt: str, inputs: dict[str, np.ndarray], said: str
) -> None:
    before = len(server.calls["firstlight_denoise"])
    error = render(server, prompt, **inputs).error()
    assert error is not None and said in error.message() and error.code == "invalid argument"
    assert len(server.calls["firstlight_denoise"]) == before


def test_a_render_that_nobody_waits_for_ends(server: Server) -> None:
    request = server.request("firstlight", PROMPT=text(PROMPT))
    request.cancelled = True
    before = len(server.calls["firstlight_denoise"])
    assert server.infer("firstlight", [request])[0].has_error()
    assert len(server.calls["firstlight_denoise"]) == before


def test_every_config_is_one_that_triton_reads(repository: Path) -> None:
    configs = {folder.name: read_config(folder) for folder in repository.iterdir()}
    assert set(configs) == {spec.name for spec in SPECS}
    for name, config in configs.items():
        assert config["name"] == name and config["backend"] == "python"
        assert config["parameters"]["model"]["string_value"].startswith("storybook@")
    assert configs["firstlight_denoise"]["max_batch_size"] == SERVING.rows
    assert int(configs["firstlight_denoise"]["dynamic_batching"]["max_queue_delay_microseconds"]) > 0
    assert configs["firstlight"]["instance_group"][0]["count"] == SERVING.rows


def test_a_broken_config_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('name: "x"\nmax_batch: 3\n')
    with pytest.raises(text_format.ParseError):
        read_config(tmp_path)


def test_weights_elsewhere_are_named_and_not_copied(tmp_path: Path, bundle: Path) -> None:
    serving = Serving(gpu=True, dtype="float16", rows=2, nsfw_threshold=0.5)
    write_repository(tmp_path, bundle, serving, served_dir='/models/"own"\\sdxl')
    config = read_config(tmp_path / "firstlight_denoise")
    assert config["parameters"]["model_dir"]["string_value"] == '/models/"own"\\sdxl'
    assert config["instance_group"][0]["kind"] == "KIND_GPU"
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_repository_is_not_written_over(repository: Path, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has firstlight_encode"):
        write_repository(repository, bundle, SERVING)
    with pytest.raises(StartupError):
        write_repository(tmp_path / "new", tmp_path, SERVING)
    assert not (tmp_path / "new").exists()


def test_a_repository_in_place_of_a_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InvalidInput, match="taken cannot be written: Not a directory"):
        write_repository(tmp_path / "taken", bundle, SERVING)
    assert (tmp_path / "taken").read_text() == "mine"
