"""Writes a model repository for Triton: four models of its Python backend that call our stages. No torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput, StartupError
from sampling.profile import load_profile

VERSION = "1"  # of the repository's layout; the model's own version is a parameter
WEIGHTS = "weights"
LEFT_OUT = ("*.jpg", "gate")  # the model card's pictures and the gate are not served
MAX_DELAY_US = 2000  # that a step waits for others to share its forward: little beside a step

MODEL_PY = '''"""{what}

Written by `firstlight export triton`; the code is Firstlight's own, which Triton's Python must have installed.
"""

from final_engine.triton.backend import {class_name} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. Shapes: dims without the batch where its model has one; -1 stands for any number."""

    name: str
    kind: str
    dims: tuple[int, ...]
    optional: bool = False

    def __str__(self) -> str:
        end = ", optional: true" if self.optional else ""
        return f'  {{ name: "{self.name}", data_type: {self.kind}, dims: [ {", ".join(map(str, self.dims))} ]{end} }}'


@dataclass(frozen=True, slots=True)
class Spec:
    """One model of the repository and the class of backend.py that is behind it."""

    name: str
    class_name: str
    what: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


ENCODE = Spec(
    "firstlight_encode",
    "EncodeModel",
    "A text to the embeddings that the network reads.",
    (Port("TEXT", "TYPE_STRING", (1,)),),
    (Port("EMBEDS", "TYPE_FP32", (1, -1, -1)), Port("POOLED", "TYPE_FP32", (1, -1))),
)
DENOISE = Spec(
    "firstlight_denoise",
    "DenoiseModel",
    "Latents at a noise level to the estimate of the picture, guidance included; requests share a forward.",
    (
        Port("LATENTS", "TYPE_FP32", (-1, -1, -1)),
        Port("SIGMA", "TYPE_FP32", (1,)),
        Port("TIMESTEP", "TYPE_FP32", (1,)),
        Port("GUIDANCE_SCALE", "TYPE_FP32", (1,)),
        Port("EMBEDS", "TYPE_FP32", (-1, -1)),
        Port("POOLED", "TYPE_FP32", (-1,)),
        Port("NEGATIVE_EMBEDS", "TYPE_FP32", (-1, -1)),
        Port("NEGATIVE_POOLED", "TYPE_FP32", (-1,)),
    ),
    (Port("DENOISED", "TYPE_FP32", (-1, -1, -1)),),
)
DECODE = Spec(
    "firstlight_decode",
    "DecodeModel",
    "Latents of finished pictures to pixels.",
    (Port("LATENTS", "TYPE_FP32", (-1, -1, -1, -1)),),
    (Port("IMAGE", "TYPE_UINT8", (-1, -1, -1, 3)),),
)
RENDER = Spec(
    "firstlight",
    "RenderModel",
    "A prompt to a checked picture; calls the other three.",
    (
        Port("PROMPT", "TYPE_STRING", (1,)),
        Port("NEGATIVE_PROMPT", "TYPE_STRING", (1,), optional=True),
        Port("SEED", "TYPE_INT64", (1,), optional=True),
        Port("WIDTH", "TYPE_INT32", (1,), optional=True),
        Port("HEIGHT", "TYPE_INT32", (1,), optional=True),
        Port("STEPS", "TYPE_INT32", (1,), optional=True),
        Port("GUIDANCE_SCALE", "TYPE_FP32", (1,), optional=True),
    ),
    (Port("IMAGE", "TYPE_UINT8", (-1, -1, 3)),),
)
SPECS = (ENCODE, DENOISE, DECODE, RENDER)


@dataclass(frozen=True, slots=True)
class Serving:
    """How the models run. rows: renders in one forward, and at work at once; dtype as torch names it."""

    gpu: bool
    dtype: str
    rows: int
    nsfw_threshold: float


def write_repository(folder: Path, model_dir: Path, serving: Serving, served_dir: str | None = None) -> list[Path]:
    """The config.pbtxt and model.py of every model, and a copy of the weights unless they are at served_dir.

    Raises: InvalidInput when one of them is there already, or the folder cannot be written; StartupError for a model
    folder that is not whole, or whose family its models do not speak for.
    """
    profile = load_profile(model_dir)
    if not profile.final.negatives:
        raise StartupError(f"{profile.id} is no model of SDXL, which alone can be exported", "export an SDXL model")
    there = [spec.name for spec in SPECS if (folder / spec.name).exists()]
    if there:
        raise InvalidInput("FOLDER", f"{folder} has {', '.join(there)} already; name another, or remove them first")
    try:
        return _written(folder, model_dir, serving, profile.model, served_dir)
    except OSError as error:
        raise InvalidInput("FOLDER", f"{folder} cannot be written: {error.strerror or error}") from error


def _written(folder: Path, model_dir: Path, serving: Serving, model: str, served_dir: str | None) -> list[Path]:
    if served_dir is None:
        shutil.copytree(model_dir, folder / RENDER.name / WEIGHTS, ignore=shutil.ignore_patterns(*LEFT_OUT))
    parameters = {
        "model": model,
        "model_dir": served_dir or f"../{RENDER.name}/{WEIGHTS}",
        "dtype": serving.dtype,
        "nsfw_threshold": f"{serving.nsfw_threshold:g}",
    }
    written = []
    for spec in SPECS:
        code = folder / spec.name / VERSION / "model.py"
        code.parent.mkdir(parents=True)
        code.write_text(MODEL_PY.format(what=spec.what, class_name=spec.class_name), encoding="utf-8")
        config = folder / spec.name / "config.pbtxt"
        config.write_text(_config(spec, serving, parameters), encoding="utf-8")
        written += [config, code]
    return written


def _config(spec: Spec, serving: Serving, parameters: dict[str, str]) -> str:
    """In protobuf's text format, after ModelConfig of Triton's model_config.proto."""
    batched = spec is DENOISE
    lines = [
        f"# {spec.what}",
        f'name: "{spec.name}"',
        'backend: "python"',
        f"max_batch_size: {serving.rows if batched else 0}",
        *_ports("input", spec.inputs),
        *_ports("output", spec.outputs),
    ]
    if batched:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {MAX_DELAY_US} }}")
    if spec is RENDER:
        lines.append(f"instance_group [ {{ count: {serving.rows}, kind: KIND_CPU }} ]")
    else:
        lines.append(f"instance_group [ {{ count: 1, kind: {'KIND_GPU' if serving.gpu else 'KIND_CPU'} }} ]")
    for name, value in parameters.items():
        lines.append(f'parameters {{ key: "{name}", value {{ string_value: {_quoted(value)} }} }}')
    return "\n".join(lines) + "\n"


def _ports(kind: str, ports: tuple[Port, ...]) -> list[str]:
    return [f"{kind} [", ",\n".join(map(str, ports)), "]"]


def _quoted(text: str) -> str:
    """Text format's string: backslash and quote escaped, the rest as bytes of UTF-8."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
