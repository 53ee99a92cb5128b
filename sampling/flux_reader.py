"""Prompts read by FLUX's two encoders: T5 gives a vector for each token, CLIP one for the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from core.prompt import parse_weights
from sampling.embedding import Embedding
from sampling.text import Text, TextTower


class FluxReader:
    """Reads the words alone: this family has no weights, so those written in a prompt do nothing.

    What does not fit is cut: T5 reads the text's length in tokens, CLIP 77. Padding is read, as in training.
    Source: diffusers' FluxPipeline.encode_prompt.
    """

    def __init__(self, text: Text, length: int) -> None:
        self._clip, self._t5 = text.towers
        self._length = length

    @torch.no_grad()
    def read(self, prompt: str) -> Embedding:
        words = "".join(segment.text for segment in parse_weights(prompt))
        short, _ = _tokens(self._clip, words, self._clip.tokenizer.model_max_length)
        ids, count = _tokens(self._t5, words, self._length)
        pooled = self._clip.encoder(short).pooler_output
        return Embedding(self._t5.encoder(ids)[0], pooled, min(count, self._length), max(0, count - self._length))


def _tokens(tower: TextTower, words: str, length: int) -> tuple[Tensor, int]:
    """Cut or padded to the length, and how many there are of it all. Shapes: [1, length]."""
    with tower.lock:
        found = tower.tokenizer(words, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        count = int(found.attention_mask.sum())
        if count == length:  # it may have been cut
            count = len(tower.tokenizer(words, verbose=False).input_ids)
    return found.input_ids.to(tower.encoder.device), count
