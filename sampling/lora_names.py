"""What the names and shapes in a LoRA file say, whoever reads it. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNET, TRANSFORMER, TEXT, TEXT_2 = COMPONENTS = ("unet", "transformer", "text_encoder", "text_encoder_2")
OTHER_KINDS = {  # by what the names of their tensors hold
    r"hada_[wt]": "a LoHa",
    r"lokr_[wt]": "a LoKr",
    r"dora_scale|lora_magnitude_vector": "a DoRA",
    r"boft_[Rs]": "a BOFT",
    r"oft_(blocks|diag|R)": "an OFT",
    r"lora_mid": "a Tucker LoCon",
    r"\.[ab][12]\.weight$": "a GLoRA",
    r"ia3_l|\.on_input$": "an IA3",
    r"vera_lambda": "a VeRA",
    r"\.(diff|diff_b|w_norm|b_norm)$": "a LyCORIS full",
    r"^(clip_[lg]|emb_params|string_to_param.*)$": "a textual inversion",
}
HALF_MARKS = (("lora_linear_layer.down", "lora_linear_layer.up"), ("lora_down", "lora_up"), ("lora.down", "lora.up"),
              ("lora_A", "lora_B"), ("lora1.down", "lora1.up"), ("lora2.down", "lora2.up"))  # fmt: skip
FLUX_CODE = re.compile(r".*?((?:double|single)_blocks\.\d+\..*)\.lora_(A|B)\.weight")
PEFT_PREFIX = "base_model.model."  # what peft's save_pretrained puts before the names of the network it was given
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # that it writes
Shape = Sequence[int]


def plain_name(key: str, network: str) -> str:
    """A tensor's name without peft's prefix; what names no component behind that is the network's.

    Layers under the names that FLUX's own code has for them are spelled as kohya spells these.
    """
    if network == TRANSFORMER and (found := FLUX_CODE.fullmatch(key)) is not None:
        half = "lora_down" if found[2] == "A" else "lora_up"
        return f"lora_unet_{found[1].replace('.', '_')}.{half}.weight"
    if not key.startswith(PEFT_PREFIX):
        return key
    rest = key.removeprefix(PEFT_PREFIX)
    return rest if rest.startswith((f"{network}.", "text_encoder")) else f"{network}.{rest}"


def other_kind(key: str) -> str | None:
    """The kind of adapter that is no LoRA, with its article, where a tensor's name gives it away."""
    return next((kind for mark, kind in OTHER_KINDS.items() if re.search(mark, key)), None)


def fits(down: Shape, up: Shape, weight: Shape) -> bool:
    """Whether two matrices make up a weight.

    Those of convolutions have a kernel, that of `up` is 1; linear ones may be written as 1 x 1 convolutions.
    """
    if len(down) not in (2, 4) or len(up) not in (2, 4) or down[0] == 0:
        return False
    kernel = tuple(weight[2:]) or (1, 1)
    given = tuple(down[2:]) or (1, 1)
    inner = down[0] == up[1] and tuple(up[2:]) in ((), (1, 1))
    return inner and (up[0], down[1]) == tuple(weight[:2]) and given == kernel


def misfit(layer: str, down: Shape, up: Shape, weight: Shape) -> str:
    """The sentence about matrices that do not fit."""
    given, wanted = f"{_plain(down)} and {_plain(up)}", _plain(weight)
    return f"does not fit this model: {layer} has {given}, which do not make up {wanted}"


def _plain(shape: Shape) -> str:
    return " x ".join(map(str, shape))
