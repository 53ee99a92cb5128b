"""What Triton's Python backend runs: encode, one denoising step, decode, and the whole render that calls them.

Only Triton's own processes import this module: `triton_python_backend_utils` exists nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch import Tensor

from core.errors import BlockedPrompt, FirstlightError, InvalidInput, NonFinite, Unavailable
from core.profile import Bucket
from core.prompt_rules import check_prompt
from core.recipe import Handoff, Recipe, Sampler
from core.validate import check_recipe
from final_engine.triton.repository import DECODE, DENOISE, ENCODE, Spec
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.embedding import Embedding
from sampling.encoder import Encoder
from sampling.model import Model, load_model
from sampling.picture import fit
from sampling.rows import Row
from sampling.safety import ImageClassifier
from sampling.stepping import advance, begin
from shared_cache.embeddings import ByteLRU

CACHE_BYTES = 2**26


class EncodeModel:
    """TEXT [1] in; EMBEDS [1, 77 * k, D] and POOLED [1, P] out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        model = _load(args, ("final",))
        self._encoder = Encoder(model, ByteLRU(CACHE_BYTES))
        model.network("final").to("meta")  # only its shapes are asked for here, and it is most of the model

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [_answered(self._encode, request) for request in requests]

    def _encode(self, request: Any) -> dict[str, Any]:
        made = self._encoder.encode(_text(request, "TEXT"))
        return {"EMBEDS": made.prompt_embeds.float(), "POOLED": made.pooled.float()}


class DenoiseModel:
    """One step's estimates of x0, of all requests that Triton hands over at once in one forward."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._model = _load(args, ("final",))
        self._denoiser = Denoiser(self._model, "final")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Rows may stand at different noise levels; their sizes and chunks are the same, as Triton batches by shape."""
        groups = [self._rows(request) for request in requests]
        rows = [row for group in groups for row in group]
        estimates = [self._finite(row, estimate) for row, estimate in zip(rows, self._denoiser(rows), strict=True)]
        answers, at = [], 0
        for group in groups:
            answers.append(_response({"DENOISED": torch.stack(estimates[at : at + len(group)])}))
            at += len(group)
        return answers

    def _finite(self, row: Row, estimate: Tensor) -> Tensor:
        """A row that overflowed a lower precision gets a second try in fp32, as in our step loop."""
        if self._denoiser.dtype is torch.float32 or bool(torch.isfinite(estimate).all()):
            return estimate
        return self._denoiser.in_float32(row)[0]

    def _rows(self, request: Any) -> list[Row]:
        given = {port.name: _tensor(request, port.name) for port in DENOISE.inputs}
        return [
            self._row(i, {name: tensor[i : i + 1] for name, tensor in given.items()})
            for i in range(len(given["LATENTS"]))
        ]

    def _row(self, i: int, given: Mapping[str, Tensor]) -> Row:
        height, width = (side * self._model.vae_scale for side in given["LATENTS"].shape[-2:])
        row = Row(
            id=str(i),
            bucket=Bucket(width, height),
            steps=1,
            guidance_scale=float(given["GUIDANCE_SCALE"]),
            sampler=Sampler.EULER,  # the step itself is taken by who asks
            seed=0,
            styles=(),
            embedding=Embedding(given["EMBEDS"], given["POOLED"], 0),
            negative=Embedding(given["NEGATIVE_EMBEDS"], given["NEGATIVE_POOLED"], 0),
        )
        row.latents = given["LATENTS"][0].to(self._model.device)
        row.timesteps, row.sigmas = [int(given["TIMESTEP"])], [float(given["SIGMA"]), 0.0]
        return row


class DecodeModel:
    """LATENTS [n, C, h, w] in; IMAGE uint8 [n, H, W, 3] out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._decoder = Decoder(_load(args, ("decode",)), "final")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [_answered(self._decode, request) for request in requests]

    def _decode(self, request: Any) -> dict[str, Any]:
        return {"IMAGE": self._decoder.decode(_tensor(request, "LATENTS"))}


class RenderModel:
    """A prompt in, a checked picture out: the loop over the other three, with our schedule and samplers.

    An instance works on one render; several instances share the denoiser's forwards through Triton's batcher.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        self._model = _load(args, ())
        self._classifier = ImageClassifier(float(_parameter(args, "nsfw_threshold")))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [_answered(self._render, request) for request in requests]

    def _render(self, request: Any) -> dict[str, Any]:
        recipe = self._recipe(request)
        row = self._begin(recipe)
        while not row.done:
            if request.is_cancelled():
                raise Cancelled("the client went away")
            advance([row], [_call(DENOISE, self._step(row))["DENOISED"][0]])
        if not bool(torch.isfinite(row.latents).all()):
            raise NonFinite("the render gave values that are not finite")
        image = _call(DECODE, {"LATENTS": row.latents[None]})["IMAGE"][0].numpy()
        if not self._classifier.allows(image):
            raise Withheld("the picture was withheld by the safety check; change the text or the seed")
        return {"IMAGE": fit(image, recipe.width, recipe.height)}

    def _recipe(self, request: Any) -> Recipe:
        """Raises: InvalidInput, BlockedPrompt as the product does."""
        profile = self._model.profile
        size, pool = profile.final.buckets[0], profile.final
        recipe = Recipe(
            prompt=_text(request, "PROMPT"),
            negative_prompt=_text(request, "NEGATIVE_PROMPT", ""),
            seed=int(_number(request, "SEED", 0)),
            width=int(_number(request, "WIDTH", size.width)),
            height=int(_number(request, "HEIGHT", size.height)),
            steps=int(_number(request, "STEPS", pool.steps)),
            guidance_scale=float(_number(request, "GUIDANCE_SCALE", pool.guidance_scale)),
            sampler=pool.sampler,
            styles=(),
            model_id=profile.id,
            model_version=profile.version,
            handoff=Handoff.FRESH,
        )
        check_recipe(recipe, profile, (), "final")
        check_prompt(recipe.prompt)
        return recipe

    def _begin(self, recipe: Recipe) -> Row:
        bucket = self._model.profile.final.nearest_bucket(recipe.width, recipe.height)
        row = Row.of("render", recipe, bucket, _encoded(recipe.prompt), _encoded(recipe.negative_prompt), styles=())
        begin(row, self._model, "final")
        return row

    def _step(self, row: Row) -> dict[str, Tensor]:
        assert row.negative is not None
        return {
            "LATENTS": row.latents[None],
            "SIGMA": torch.tensor([[row.sigma]]),
            "TIMESTEP": torch.tensor([[float(row.timesteps[row.step_index])]]),
            "GUIDANCE_SCALE": torch.tensor([[row.guidance_scale]]),
            "EMBEDS": row.embedding.prompt_embeds,
            "POOLED": row.embedding.pooled,
            "NEGATIVE_EMBEDS": row.negative.prompt_embeds,
            "NEGATIVE_POOLED": row.negative.pooled,
        }


class Cancelled(FirstlightError):
    code = "cancelled"


class Withheld(FirstlightError):
    code = "withheld"


def _encoded(text: str) -> Embedding:
    made = _call(ENCODE, {"TEXT": np.array([text.encode()], dtype=np.object_)})
    return Embedding(made["EMBEDS"], made["POOLED"], 0)


def _call(spec: Spec, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Has another model of the repository do its part.

    Raises: Unavailable with what it says.
    """
    request = pb_utils.InferenceRequest(
        model_name=spec.name,
        requested_output_names=[port.name for port in spec.outputs],
        inputs=[pb_utils.Tensor(name, _array(value)) for name, value in inputs.items()],
    )
    response = request.exec()
    if response.has_error():
        raise Unavailable(f"{spec.name}: {response.error().message()}")
    found = {port.name: pb_utils.get_output_tensor_by_name(response, port.name).as_numpy() for port in spec.outputs}
    return {name: torch.from_numpy(np.array(array)) for name, array in found.items()}


def _answered(work: Callable[[Any], dict[str, Any]], request: Any) -> Any:
    """A response; a failure that a person can be told of becomes the error of this request alone."""
    try:
        return _response(work(request))
    except FirstlightError as error:
        codes = {InvalidInput: pb_utils.TritonError.INVALID_ARG, BlockedPrompt: pb_utils.TritonError.INVALID_ARG}
        code = codes.get(type(error), pb_utils.TritonError.INTERNAL)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message, code))


def _response(outputs: Mapping[str, Any]) -> Any:
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, _array(value)) for name, value in outputs.items()]
    )


def _array(value: Any) -> Any:
    """Through the processor's memory, where every model of the repository can read it."""
    return value.detach().cpu().contiguous().numpy() if isinstance(value, Tensor) else np.ascontiguousarray(value)


def _tensor(request: Any, name: str) -> Tensor:
    return torch.from_numpy(np.array(pb_utils.get_input_tensor_by_name(request, name).as_numpy()))


def _text(request: Any, name: str, default: str | None = None) -> str:
    """Raises: InvalidInput for text that is missing or no UTF-8."""
    given = pb_utils.get_input_tensor_by_name(request, name)
    if given is None:
        if default is None:
            raise InvalidInput(name, "is required")
        return default
    try:
        return bytes(given.as_numpy().reshape(-1)[0]).decode()
    except UnicodeDecodeError:
        raise InvalidInput(name, "must be UTF-8") from None


def _number(request: Any, name: str, default: float) -> float:
    given = pb_utils.get_input_tensor_by_name(request, name)
    number: float = default if given is None else given.as_numpy().reshape(-1)[0].item()
    return number


def _load(args: Mapping[str, str], roles: Sequence[str]) -> Model:
    """The model that the repository holds, on the device that Triton gave this instance."""
    folder = Path(args["model_repository"]) / _parameter(args, "model_dir")
    gpu = args["model_instance_kind"] == "GPU"
    device = f"cuda:{args['model_instance_device_id']}" if gpu else "cpu"
    dtype: torch.dtype = getattr(torch, _parameter(args, "dtype"))
    return load_model(folder.resolve(), device=device, dtype=dtype, roles=roles)


def _parameter(args: Mapping[str, str], name: str) -> str:
    return str(json.loads(args["model_config"])["parameters"][name]["string_value"])
