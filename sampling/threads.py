"""How many threads a forward pass uses."""

from __future__ import annotations

import torch


def use_threads(count: int | None) -> None:
    """Sets the threads of the calling process's networks; None leaves one a core."""
    if count is not None:
        torch.set_num_threads(count)
