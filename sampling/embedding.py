"""What the network reads of a prompt, and its form between processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

CHUNK_TOKENS = 77


@dataclass(frozen=True, slots=True)
class Embedding:
    """What the network reads of a prompt; tokens_unread are cut off, where the family has a most.

    Shapes: prompt_embeds [1, 77 * chunks, D], in FLUX [1, tokens, D], as many in all prompts; pooled [1, P].
    """

    prompt_embeds: Tensor
    pooled: Tensor
    token_count: int
    tokens_unread: int = 0

    @property
    def chunks(self) -> int:
        return self.prompt_embeds.shape[1] // CHUNK_TOKENS

    @property
    def finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in (self.prompt_embeds, self.pooled))

    @property
    def nbytes(self) -> int:
        return self.prompt_embeds.nbytes + self.pooled.nbytes


def packed(made: Embedding) -> bytes:
    """Safetensors in the precision that it has: another process's copy is equal bit for bit."""
    tokens = torch.tensor([made.token_count, made.tokens_unread])
    tensors = {"prompt_embeds": made.prompt_embeds, "pooled": made.pooled, "tokens": tokens}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpacked(data: bytes, device: torch.device) -> Embedding:
    """Raises: SafetensorError, KeyError, ValueError for what packed did not write."""
    found = load(data)
    embeds, pooled = found["prompt_embeds"].to(device), found["pooled"].to(device)
    if embeds.ndim != 3 or pooled.ndim != 2:
        raise ValueError(f"shapes {tuple(embeds.shape)} and {tuple(pooled.shape)}")
    read, unread = found["tokens"].tolist()
    return Embedding(embeds, pooled, read, unread)
