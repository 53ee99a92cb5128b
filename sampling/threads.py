"""How many threads a forward pass uses."""

from __future__ import annotations

import os

import torch


def use_threads(count: int | None) -> None:
    """Sets the threads of the calling process's networks; None takes half of the cores.

    The other half is for the stages that run at the same time: decode, safety, publish and the web process. Threads of
    one forward wait for each other at every operation, and a core that is shared makes all of them wait.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // 2) if count is None else count)
