"""How a pool's prompts are read: tokenizers and text encoders, and what names them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel, T5Tokenizer


@dataclass(frozen=True, slots=True)
class TextTower:
    """One tokenizer with its text encoder; a model has two: SDXL's are of CLIP, FLUX's of CLIP and T5.

    lock: held while the tokenizer is used; fast ones raise "Already borrowed" when two threads do.
    """

    tokenizer: CLIPTokenizer | T5Tokenizer
    encoder: CLIPTextModel | CLIPTextModelWithProjection | T5EncoderModel
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """How prompts are read: one object for both pools where theirs are the same.

    version names tokenizers and weights, so that what was read by others is never taken for it. zero_empty: an empty
    prompt is all zeros. length: how many tokens T5 reads; None for SDXL, which reads as many chunks of 77 as there are.
    """

    towers: tuple[TextTower, TextTower]
    version: str
    zero_empty: bool
    length: int | None = None

    @property
    def negatives(self) -> bool:
        """Whether a negative prompt is ever read."""
        return self.length is None
