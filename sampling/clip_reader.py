"""Prompts read by SDXL's two CLIP encoders: weights, any length, one pooled vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.prompt import parse_weights
from sampling.embedding import CHUNK_TOKENS, Embedding
from sampling.text import Text, TextTower

if TYPE_CHECKING:
    from compel.embeddings_provider import EmbeddingsProvider

MAX_LOWERED_WEIGHTS = 8  # each distinct weight below 1 adds rows to the text encoders' batch
SMALLEST_WEIGHT = 1e-5
FIRST_MARK = 2.0  # compel gives start, end and padding 1.0, so segments are marked from here


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt cut into chunks. Shapes: ids, marks, weights [k, 77]; start [1, 77]; empty [1, 77].

    marks: 2 + the segment's index, 1 at start, end and padding. start: the first 77 tokens, for the pooled vector.
    """

    ids: Tensor
    marks: Tensor
    weights: Tensor
    start: Tensor
    empty: Tensor


class ClipReader:
    """Segments go to compel's tokenising provider as they are, so no character of a prompt is syntax here."""

    def __init__(self, text: Text) -> None:
        self._zero_empty = text.zero_empty
        self._towers = [(tower, _provider(tower)) for tower in text.towers]

    @torch.no_grad()
    def read(self, prompt: str) -> Embedding:
        segments = parse_weights(prompt)
        texts = [segment.text for segment in segments]
        weights = _bounded([segment.weight for segment in segments])
        sides, pooled, tokens = [], None, None
        for tower, provider in self._towers:
            with tower.lock:
                tokens = _tokenise(provider, texts, weights)
            side, pooled = _run_tower(tower, tokens, weights)
            sides.append(side)
        assert pooled is not None and tokens is not None  # there are two towers
        made = Embedding(torch.cat(sides, dim=-1), pooled, int((tokens.marks >= FIRST_MARK).sum()))
        return _zeros_like(made) if self._zero_empty and not prompt.strip() else made


def _provider(tower: TextTower) -> EmbeddingsProvider:
    # Imported once the model's loading has quietened the libraries: compel's import warns of unused image processors.
    from compel.embeddings_provider import EmbeddingsProvider, SplitLongTextMode

    return EmbeddingsProvider(
        tower.tokenizer, tower.encoder, truncate=False, split_long_text_mode=SplitLongTextMode.WORDS
    )


def _bounded(weights: Sequence[float]) -> list[float]:
    """The weights, those below 1 rounded to eighths where a prompt holds more different ones than we run."""
    if len({weight for weight in weights if weight < 1}) <= MAX_LOWERED_WEIGHTS:
        return list(weights)
    return [round(weight * MAX_LOWERED_WEIGHTS) / MAX_LOWERED_WEIGHTS if weight < 1 else weight for weight in weights]


def _tokenise(provider: EmbeddingsProvider, texts: Sequence[str], weights: Sequence[float]) -> Tokens:
    device = provider.device
    ids, expanded, _ = provider.get_token_ids_and_expand_weights(list(texts), list(weights), device)
    marks = [FIRST_MARK + i for i in range(len(texts))]
    _, marked, _ = provider.get_token_ids_and_expand_weights(list(texts), marks, device)
    start, empty = provider.get_token_ids(["".join(texts), ""], padding="max_length", truncation_override=True)
    return Tokens(
        ids.view(-1, CHUNK_TOKENS),
        marked.view(-1, CHUNK_TOKENS),
        expanded.view(-1, CHUNK_TOKENS),
        torch.tensor([start], device=device),
        torch.tensor([empty], device=device),
    )


def _run_tower(tower: TextTower, tokens: Tokens, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """One pass for the chunks, the text's start, and what weights need: the empty prompt and chunks without segments.

    Shapes: returns [1, 77 * k, width] and [1, P] (P is the width where the tower has no projection).
    Source: compel: above 1, away from the empty prompt; below 1, towards the prompt with the segment masked.
    """
    lowered = sorted({weight for weight in weights if weight < 1})
    hidden = [_segments_at(tokens.marks, weights, weight) for weight in lowered]
    variants = [(mask, mask.any(dim=1)) for mask in hidden]
    plain = bool((tokens.weights == 1).all())
    whole_text = torch.equal(tokens.start[0], tokens.ids[0])
    batch = [tokens.ids, tokens.start[int(whole_text) :], tokens.empty[int(plain) :]]
    ids = torch.cat([*batch, *(tokens.ids[rows] for _, rows in variants)])
    shown = [torch.ones_like(part) for part in batch] + [(~mask[rows]).long() for mask, rows in variants]
    out = tower.encoder(ids, attention_mask=torch.cat(shown) if lowered else None, output_hidden_states=True)
    count = len(tokens.ids)
    pooled = out[0][:1] if whole_text else out[0][count : count + 1]
    states = out.hidden_states[-2]
    if plain:
        return states[:count].reshape(1, -1, states.shape[-1]), pooled
    edge = count + int(not whole_text)
    mixed = _mix(states[:count].float(), states[edge + 1 :].float(), lowered, [rows for _, rows in variants])
    weight_of, empty = tokens.weights[..., None], states[edge].float()
    weighted = torch.where(weight_of == 1, mixed, empty + (mixed - empty) * weight_of)
    return weighted.reshape(1, -1, states.shape[-1]).to(states.dtype), pooled


def _mix(whole: Tensor, variants: Tensor, lowered: Sequence[float], touched: Sequence[Tensor]) -> Tensor:
    """The whole prompt blended with its variants, each of which lacks the segments of one weight.

    Shapes: whole [k, 77, width]; variants [v, 77, width], those chunks alone that lack something, in order.
    """
    mixed, total, at = whole, 1.0, 0
    for weight, rows in zip(lowered, touched, strict=True):
        share = math.tan((1 - max(weight, SMALLEST_WEIGHT)) * math.pi / 2)
        variant = whole.clone()
        variant[rows] = variants[at : at + int(rows.sum())]
        mixed, total, at = mixed + share * variant, total + share, at + int(rows.sum())
    return mixed / total


def _segments_at(marks: Tensor, weights: Sequence[float], weight: float) -> Tensor:
    """Where the segments of one weight stand. Shapes: bool, as marks."""
    chosen = [FIRST_MARK + i for i, other in enumerate(weights) if other == weight]
    return torch.isin(marks, torch.tensor(chosen, device=marks.device, dtype=marks.dtype))


def _zeros_like(made: Embedding) -> Embedding:
    return Embedding(torch.zeros_like(made.prompt_embeds), torch.zeros_like(made.pooled), made.token_count)
