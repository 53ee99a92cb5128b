"""How a pool's prompts are read: tokenizers and text encoders, and what names them."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer


@dataclass(frozen=True, slots=True)
class TextTower:
    """One tokenizer with its text encoder; SDXL has two towers."""

    tokenizer: CLIPTokenizer
    encoder: CLIPTextModel | CLIPTextModelWithProjection


@dataclass(frozen=True, slots=True)
class Text:
    """How prompts are read: one object for both pools where theirs are the same.

    version names tokenizers and weights, so that what was read by others is never taken for it. zero_empty: an empty
    prompt is all zeros.
    """

    towers: tuple[TextTower, TextTower]
    version: str
    zero_empty: bool
