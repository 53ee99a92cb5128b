"""Which model a LoRA file was made for, as far as its names and shapes tell. No torch.

Source: the layers' names in diffusers and in each model's own code, as trainers write them; SD 3's widths are those of
its medium and large models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sampling.lora_names import HALF_MARKS, TRANSFORMER, UNET, Shape

TEXT_WIDTHS = {768: "SD 1.x", 1024: "SD 2.x", 2048: "SDXL"}
SD_3_WIDTHS = (1536, 2432)  # its layers may have the names of FLUX's, which are 3072 wide
SD_3_READS = re.compile(r"(^|[._])transformer_blocks[._]\d+[._]attn[._](to_[qkv]|add_[qkv]_proj)")
NETWORK_MARKS = (  # what stands in the names of one network's layers alone, its maker, and which component it is here
    (re.compile(r"joint_blocks[._]\d"), "SD 3", None),
    (re.compile(r"transformer_blocks[._]\d+[._](img|txt)_(mlp|mod)"), "Qwen-Image", None),
    (re.compile(r"(^|[._])blocks[._]\d+[._](self|cross)_attn[._]"), "Wan", None),
    (re.compile(r"(?<!encoder[._])layers[._]\d+[._](self_attn|mlp)[._][a-z]+_proj"), "a language model", None),
    (re.compile(r"(double|single)_blocks[._]\d|single_transformer_blocks"), "FLUX", TRANSFORMER),
    (re.compile(r"(down|up|input|output)_blocks?[._]\d|mid(dle)?_block"), "SDXL or Stable Diffusion", UNET),
)
UNET_MARKS = (  # which UNet, where nothing in a file reads the text
    (re.compile(r"_blocks?[._].*transformer_blocks[._][1-9]"), "SDXL"),
    (
        re.compile(r"(down|up)_blocks[._]3|down_blocks[._]0[._]attentions|input_blocks[._][12][._]1|lora_te_"),
        "SD 1.x or SD 2.x",
    ),
)


def foreign(shapes: Mapping[str, Shape], network: str, text_width: int | None) -> str | None:
    """Why a file does not fit this model: it names the layers of a network of another kind, or reads another text.

    Units: text_width is that of the text which a UNet reads; None for others.
    """
    made = next((maker for maker, of in _networks(shapes) if of != network), None)
    if made is None and text_width is not None:
        made = next((_named(width) for width in _text_widths(shapes) if width != text_width), None)
    return made and f"was made for another model ({made}); this one is {_described(network, text_width)}"


def likely(shapes: Mapping[str, Shape], network: str, text_width: int | None) -> str:
    """The end of a sentence about a file that does not fit: what it looks made for, where that can be told, and what
    the model is. Units: as foreign."""
    found = [TEXT_WIDTHS[width] for width in _text_widths(shapes) if width in TEXT_WIDTHS]
    found += [maker for mark, maker in UNET_MARKS if any(map(mark.search, shapes))]
    looks = f"; the file looks made for {found[0]}" if found else ""
    return f"{looks}; this model is {_described(network, text_width)}"


def _described(network: str, text_width: int | None) -> str:
    if network == TRANSFORMER:
        return "FLUX"
    return f"{'SDXL' if text_width == 2048 else 'of the architecture of SDXL'}, text {text_width} wide"


def _networks(shapes: Mapping[str, Shape]) -> Iterator[tuple[str, str | None]]:
    """Makers of the networks whose layers a file names, each with the component that such a network is here, if any."""
    reads = (shape for key, shape in shapes.items() if _lower(key) and SD_3_READS.search(key))
    if any(len(shape) == 2 and shape[1] in SD_3_WIDTHS for shape in reads):
        yield "SD 3", None
    yield from ((maker, of) for mark, maker, of in NETWORK_MARKS if any(map(mark.search, shapes)))


def _text_widths(shapes: Mapping[str, Shape]) -> Iterator[int]:
    """What reads the text in a UNet is as wide as that."""
    for key, shape in shapes.items():
        if "attn2" in key and ("to_k" in key or "to_v" in key) and _lower(key) and len(shape) == 2:
            yield shape[1]


def _named(width: int) -> str:
    return ", ".join(filter(None, [TEXT_WIDTHS.get(width), f"text {width} wide"]))


def _lower(key: str) -> bool:
    return any(down in key for down, _ in HALF_MARKS)
