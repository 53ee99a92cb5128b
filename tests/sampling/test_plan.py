"""Profiles and own models: which parts each pool paints with, how, and whether they fit into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderTiny

from core.errors import StartupError
from core.profile import Bucket
from core.recipe import Sampler
from sampling import hub
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.memory import GB, check_memory, free_bytes, needed_bytes
from sampling.model import load_model
from sampling.plan import PROFILES, Plan, describe, plan_of, profile_names
from sampling.slots import layer_shapes
from shared_cache.embeddings import ByteLRU
from tests.sampling.conftest import Clock, NoStyles, row_of
from tests.sampling.test_kinds import SCHEDULER, copied, refusal, rewrite
from tests.sdxl import published, small_pipeline


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("base") / "Base XL", variant="fp16")


@pytest.fixture(scope="module")
def turbo(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """Another UNet, by one tensor; the text encoders are the same as the base's, in files of their own."""
    folder = tmp_path_factory.mktemp("turbo") / "turbo"
    pipeline = small_pipeline(timestep_spacing="trailing")
    torch.nn.init.ones_(pipeline.unet.conv_in.weight)
    pipeline.save_pretrained(folder, variant="fp16")
    return folder


OWN: dict[str, tuple[dict[str, Any], tuple[Sampler, int, float], tuple[Sampler, int, float]]] = {
    "base": ({}, (Sampler.DPMPP_2M, 8, 5.0), (Sampler.EULER, 30, 5.0)),
    "few steps": ({"timestep_spacing": "trailing"}, (Sampler.EULER_A, 1, 0.0), (Sampler.EULER_A, 4, 0.0)),
    "consistency": ({"_class_name": "LCMScheduler"}, (Sampler.LCM, 4, 1.0), (Sampler.LCM, 8, 1.0)),
    "zero terminal SNR": (
        {"timestep_spacing": "trailing", "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"},
        (Sampler.DPMPP_2M, 8, 5.0),
        (Sampler.EULER, 30, 5.0),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_folder_is_painted_as_its_configs_say(base: Path, tmp_path: Path, name: str) -> None:
    """Never as its name says: a base called turbo is a base."""
    changes, *wanted = OWN[name]
    folder = copied(base, tmp_path / "turbo")
    rewrite(folder / SCHEDULER, **changes)
    profile = plan_of(folder).profile
    found = [(pool.sampler, pool.steps, pool.guidance_scale) for pool in (profile.preview, profile.final)]
    assert found == wanted and profile.id == "turbo"


@pytest.mark.parametrize(
    ("side", "sizes"),
    [(128, ["1024x1024", "1152x896", "896x1152", "1216x832", "832x1216"]), (64, ["512x512", "576x448"])],
)
def test_own_folder_has_the_sizes_of_its_native_area(base: Path, tmp_path: Path, side: int, sizes: list[str]) -> None:
    folder = copied(base, tmp_path / "model")
    rewrite(folder / "unet" / "config.json", sample_size=side)
    profile = plan_of(folder).profile
    assert [str(bucket) for bucket in profile.final.buckets][: len(sizes)] == sizes
    assert profile.limits.max_side == max(bucket.width for bucket in profile.final.buckets)


def test_version_of_an_own_model_follows_its_weights_and_not_its_place(base: Path, turbo: Path, tmp_path: Path) -> None:
    moved = copied(base, tmp_path / "elsewhere")
    assert plan_of(moved).profile.version == plan_of(base).profile.version != plan_of(turbo).profile.version


def a_profile(path: Path, base: Path, turbo: Path, **changes: Any) -> Path:
    pool = {"sampler": "euler_a", "steps": 1, "guidance_scale": 0.0, "buckets": [[64, 64]]}
    fields = {
        "id": "pair",
        "sources": {
            "base": {"path": str(base), "variant": "fp16", "licence": "MIT"},
            "turbo": {"path": str(turbo), "variant": "fp16", "licence": "no money", "commercial": False},
        },
        "preview": {**pool, "source": "turbo", "vae": "base:vae"},
        "final": {**pool, "source": "base", "sampler": "euler", "steps": 30, "buckets": [[128, 128], [152, 104]]},
        **changes,
    }
    path.write_text(json.dumps(fields))
    return path


def test_pools_may_be_two_models_that_share_what_is_equal(base: Path, turbo: Path, tmp_path: Path) -> None:
    """The text encoders lie in two folders with the same content: they are read once, and prompts are encoded once."""
    model = load_model(a_profile(tmp_path / "pair.json", base, turbo))
    assert not torch.equal(model.network("preview").conv_in.weight, model.network("final").conv_in.weight)
    assert model.text("preview") is model.text("final") and model.vae is model.vae_preview
    assert (model.schedules["preview"].spacing, model.schedules["final"].spacing) == ("trailing", "leading")
    profile = model.profile
    assert (profile.preview.buckets, profile.preview.licence) == ((Bucket(64, 64),), "no money; MIT")
    assert (profile.final.nearest_bucket(3, 2), profile.final.licence) == (Bucket(152, 104), "MIT")


def test_embeddings_of_pools_with_other_text_encoders_are_never_mixed(base: Path, tmp_path: Path) -> None:
    other = published(tmp_path / "other", seed=3)
    model = load_model(a_profile(tmp_path / "pair.json", base, other))
    cache: ByteLRU[Any] = ByteLRU(1 << 24)
    found = [Encoder(model, cache, pool=pool).encode("a cat").prompt_embeds for pool in ("preview", "final")]
    assert model.text("preview").version != model.text("final").version
    assert not torch.equal(found[0], found[1])


def test_replaced_parts_are_those_that_are_loaded(base: Path, turbo: Path, tmp_path: Path) -> None:
    """A VAE and a small decoder of folders of their own; the pool's own VAE need not be there."""
    small = AutoencoderTiny(
        encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4, scaling_factor=1.0
    )
    small.save_pretrained(tmp_path / "small")
    lacking = copied(turbo, tmp_path / "lacking")
    (lacking / "vae" / "diffusion_pytorch_model.fp16.safetensors").unlink()
    path = a_profile(tmp_path / "pair.json", base, lacking)
    fields = json.loads(path.read_text())
    fields["sources"]["small"] = {"path": "small"}
    fields["preview"]["decoder"] = "small:"
    path.write_text(json.dumps(fields))
    model = load_model(path)
    assert isinstance(model.vae_preview, AutoencoderTiny) and model.vae_preview is not model.vae
    assert Decoder(model, "preview").decode(torch.zeros(1, 4, 8, 8)).shape == (1, 64, 64, 3)
    AutoencoderTiny(latent_channels=16).save_pretrained(tmp_path / "small")
    assert "decoder of 16 latent channels, the model has 4" in refusal(path).cause


def test_pools_of_other_latents_are_refused(base: Path, turbo: Path, tmp_path: Path) -> None:
    rescaled = copied(turbo, tmp_path / "rescaled")
    rewrite(rescaled / "vae" / "config.json", scaling_factor=0.18215)
    path = a_profile(tmp_path / "pair.json", base, rescaled)
    fields = json.loads(path.read_text())
    del fields["preview"]["vae"]
    path.write_text(json.dumps(fields))
    assert "0.13025" in refusal(path).cause and "one latent space" in refusal(path).remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"speed": "fast"}},
        {"options": {"weights": "int3"}},
        {"sources": {"base": {"licence": "MIT"}}},
        {"sources": {"base": {"path": ".", "hub": "a/b"}}},
        {"preview": {"sampler": "euler"}},
    ],
)
def test_profile_names_itself_when_a_field_is_wrong(base: Path, turbo: Path, tmp_path: Path, changes: Any) -> None:
    assert "pair.json" in refusal(a_profile(tmp_path / "pair.json", base, turbo, **changes)).cause


@pytest.mark.parametrize(
    ("change", "said"), [({"verison": "2"}, "the profile knows no verison"), (None, "preview knows no stpes")]
)
def test_mistyped_name_leaves_no_default_in_place_unseen(
    base: Path, turbo: Path, tmp_path: Path, change: dict[str, Any] | None, said: str
) -> None:
    path = a_profile(tmp_path / "pair.json", base, turbo, **(change or {}))
    if change is None:
        fields = json.loads(path.read_text())
        fields["preview"]["stpes"] = fields["preview"].pop("steps")
        path.write_text(json.dumps(fields))
    assert said in refusal(path).cause


def test_profile_may_hold_its_weights_in_less_than_it_computes_in(base: Path, turbo: Path, tmp_path: Path) -> None:
    """The picture is that of rounded weights, at the speed and precision of float32."""
    light = load_model(a_profile(tmp_path / "light.json", base, turbo, options={"weights": "bfloat16"}))
    full = load_model(a_profile(tmp_path / "full.json", base, turbo))
    assert light.dtype is torch.float32 and light.network("final").conv_in.weight.dtype is torch.bfloat16
    assert light.network("final").conv_norm_out.weight.dtype is torch.float32
    with torch.no_grad():
        for tower in full.text().towers:
            _round(tower.encoder)
        _round(full.network("final"))
    rows = []
    for model in (light, full):
        encoder = Encoder(model, ByteLRU(1 << 24))
        row = row_of(embedding=encoder.encode("a fox"), bucket=Bucket(128, 128), steps=2)
        loop = StepLoop(Denoiser(model, "final"), NoStyles(), 8, Clock())  # type: ignore[arg-type]
        loop.join(row)
        while loop.rows:
            assert not loop.step().failed
        rows.append(row.latents)
    torch.testing.assert_close(rows[0], rows[1], atol=1e-3, rtol=0)


def _round(network: torch.nn.Module) -> None:
    for name in layer_shapes(network):
        weight = network.get_submodule(name).weight
        weight.copy_(weight.bfloat16())


@pytest.mark.parametrize("name", [path.stem for path in PROFILES.glob("*.json")])
def test_written_profile_names_revisions_and_licences(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    described = describe(PROFILES / f"{name}.json")
    assert described.id == name in profile_names() and described.about
    for source in described.sources.values():
        assert len(source.revision) == 40 and source.licence_url and source.commercial is not None
    if described.family == "sdxl":
        assert f"models pull {name}" in refusal(Path(name)).remedy


def test_hub_id_that_was_pulled_is_an_own_model(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = hub.repository_folder("someone/Fine-XL")
    copied(base, repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    profile = plan_of("someone/Fine-XL").profile
    assert (profile.id, profile.version) == ("fine-xl", plan_of(base).profile.version)


@pytest.fixture(scope="module")
def plan(bundle: Path) -> Plan:
    return plan_of(bundle)


ALL = ("preview", "final", "decode")


def test_weights_are_weighed_once_where_they_are_shared(plan: Plan) -> None:
    parts = [plan.final.network, *plan.final.text, plan.final.vae]
    one = 4 * sum(part.elements() for part in parts)
    assert needed_bytes(plan, ("final", "decode"), "float32") == one
    assert needed_bytes(plan, ALL, "float32") == one + 4 * plan.final.network.elements()  # the adapter's copy
    assert needed_bytes(plan, ("finish",), "float32") == 0
    halved = sum(part.elements() for part in (*parts[:3], plan.final.network)) * 2
    assert needed_bytes(plan, ALL, "float32") - needed_bytes(plan, ALL, "bfloat16") == halved


def test_two_models_of_one_size_are_weighed_both(base: Path, turbo: Path, tmp_path: Path) -> None:
    pair = plan_of(a_profile(tmp_path / "pair.json", base, turbo))
    alone = needed_bytes(pair, ("final", "decode"), "float32")
    assert needed_bytes(pair, ALL, "float32") == alone + 4 * pair.preview.network.elements()


def test_memory_that_is_missing_is_told_with_what_would_fit(plan: Plan) -> None:
    needed = needed_bytes(plan, ALL, "float32")
    check_memory(plan, ALL, "float32", needed)
    with pytest.raises(StartupError) as refused:
        check_memory(plan, ALL, "float32", needed - 1)
    assert f"{needed / GB:.1f} GB as float32" in refused.value.cause
    for words in ('"weights": "bfloat16"', "--roles preview", "--roles final", "--roles decode"):
        assert words in refused.value.remedy
    with pytest.raises(StartupError, match="no option of this one fits"):
        check_memory(plan, ALL, "float32", 1000)


def test_memory_is_weighed_before_anything_is_loaded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampling.model.free_bytes", lambda: 1000)
    monkeypatch.setattr("sampling.model.open_part", lambda *_: pytest.fail("something was loaded"))
    with pytest.raises(StartupError, match="are missing"):
        load_model(base)


def test_memory_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampling.memory.CGROUP", tmp_path)
    assert free_bytes() > 10_000
    for name, text in {
        "memory.max": "9000\n",
        "memory.current": "5000\n",
        "memory.stat": "inactive_file 2000\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert free_bytes() == 6000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() > 10_000
