"""What can be known of a LoRA file before anybody reads it as one: kind, numbers, names and shapes. No torch.

Where a layout's names are not those of the network, the worker's own reading (sampling/lora.py) has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import InvalidInput
from sampling.lora_makers import foreign, likely
from sampling.lora_names import (
    HALF_MARKS,
    PEFT_PREFIX,
    TEXT,
    TEXT_2,
    TRANSFORMER,
    UNET,
    Shape,
    fits,
    misfit,
    other_kind,
    plain_name,
)
from sampling.plan import Plan
from shared_cache.safetensors_header import read_header

PREFIXES = {  # of names with _ for dots; "" stands for what denoises
    "lora_unet_": "", "unet_": UNET, "lora_transformer_": TRANSFORMER, "transformer_": TRANSFORMER, "": "",
    "lora_te1_": TEXT, "lora_te2_": TEXT_2, "lora_te_": TEXT, "text_encoder_2_": TEXT_2, "text_encoder_": TEXT,
}  # fmt: skip
UNMAPPED = (  # layouts of other names
    "input_blocks", "output_blocks", "middle_block", "double_blocks", "single_blocks", "_processor_", "self_attn_to_",
)  # fmt: skip
NOT_FINITE: Mapping[str, tuple[str, int]] = {  # bits, and from where on, without the sign, no number
    "F8_E4M3": ("<u1", 0x7F), "F8_E5M2": ("<u1", 0x7C), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F80 << 16), "F64": ("<u8", 0x47F0 << 48),  # F64: what F32 cannot hold
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fit:
    """What a file must fit: the weights of the networks, by component and name with _ for dots, and the text's width.

    network: the component that denoises. text_width is None where that is no UNet.
    Shapes: [out, in, *kernel]. Empty where the model lies under the names of the original code.
    """

    network: str
    layers: Mapping[tuple[str, str], Shape]
    text_width: int | None

    @classmethod
    def of(cls, plan: Plan) -> Fit:
        shapes = {
            part.name: {name.removesuffix(".weight"): entry["shape"] for name, entry in part.tensors().items()}
            for part in (plan.final.network, *plan.final.text)
            if not part.original
        }
        return cls.made(plan.final.network.name, shapes, plan.final.network.config.get("cross_attention_dim"))

    @classmethod
    def made(cls, network: str, shapes: Mapping[str, Mapping[str, Shape]], text_width: int | None) -> Fit:
        """Of the shapes of each component's weights, by layer; what is no matrix or convolution is left out."""
        layers = {
            (component, _flat(name)): shape
            for component, named in shapes.items()
            for name, shape in named.items()
            if len(shape) in (2, 4)
        }
        return cls(network, layers, text_width)

    def weight(self, layer: str) -> Shape | None:
        """Of what a file calls so, with _ for dots; None where the networks have no such layer."""
        for prefix, component in PREFIXES.items():
            found = self.layers.get((component or self.network, layer.removeprefix(prefix)))
            if found is not None and layer.startswith(prefix):
                return found
        return None


def check_fit(path: Path, fit: Fit) -> None:
    """Raises: InvalidInput, whose field is the file's name, for a file that no worker could use."""
    header = read_header(path)
    header.pop("__metadata__", None)
    reason = _wrong_names(header, fit) or _wrong_numbers(path, header)
    if reason is not None:
        raise InvalidInput(path.name, reason)


def _wrong_names(header: Mapping[str, Any], fit: Fit) -> str | None:
    kind = next(filter(None, map(other_kind, header)), None)
    if kind is not None:
        return f"is {kind} file, which is not supported; bring it as LoRA"
    shapes = {plain_name(key, fit.network): entry["shape"] for key, entry in header.items()}
    pairs = {key: _other_half(key) for key in shapes}
    downs = {key: up for key, (up, is_down) in pairs.items() if is_down}
    lacking = sorted(key for key, (other, _) in pairs.items() if other and other not in shapes)
    if lacking:
        return f"{len(lacking)} layers lack one of two matrices, as {lacking[0]}"
    reason = foreign(shapes, fit.network, fit.text_width)
    if reason is None and (misfit := _misfit(shapes, downs, fit)) is not None:
        reason = misfit + likely(shapes, fit.network, fit.text_width)
    return reason


def _misfit(shapes: Mapping[str, Shape], downs: Mapping[str, str], fit: Fit) -> str | None:
    matched = 0
    layers = {down: _flat(down[: down.index(_mark(down))]) for down in downs}
    for down, up in downs.items():
        layer = layers[down]
        weight = fit.weight(layer)
        if weight is None:
            continue
        if not fits(shapes[down], shapes[up], weight):
            return misfit(layer, shapes[down], shapes[up], weight)
        matched += 1
    guessed = not fit.layers or any(mark in layer for layer in layers.values() for mark in UNMAPPED)
    if matched or (downs and guessed):
        return None
    of_text = any(f"{fit.network}.text_model." in key for key in shapes)
    hint = f"; of what peft's save_pretrained writes, the {fit.network}'s is read" if of_text else ""
    return f"0 of {len(shapes)} keys matched{hint}"


def _other_half(key: str) -> tuple[str, bool]:
    """The name of the matrix that belongs to this one, "" where it is none; whether this one is the lower."""
    for down, up in HALF_MARKS:
        if down in key:
            return key.replace(down, up), True
        if up in key:
            return key.replace(up, down), False
    return "", False


def _mark(key: str) -> str:
    return next(down for down, _ in HALF_MARKS if down in key)


def _flat(name: str) -> str:
    return name.replace(".", "_").replace("text_model_", "").rstrip("_")


def _wrong_numbers(path: Path, header: Mapping[str, Any]) -> str | None:
    """Matrices are of real numbers, and all are finite; whole numbers are taken for alpha alone."""
    with open(path, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        for key, entry in header.items():
            name, dtype = key.removeprefix(PEFT_PREFIX), entry["dtype"]
            if dtype not in NOT_FINITE and len(entry["shape"]) > 1:
                return f"holds numbers of type {dtype}, the first in {name}; save it as F16, BF16 or F32"
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            if not _finite(dtype, file.read(end - begin)):
                return f"holds values that are not finite, the first in {name}"
    return None


def _finite(dtype: str, data: bytes) -> bool:
    if dtype not in NOT_FINITE:
        return True
    kind, bound = NOT_FINITE[dtype]
    bits = np.frombuffer(data, kind)
    return not bool(((bits & (np.iinfo(bits.dtype).max >> 1)) >= bound).any())
