"""Start the training workers of one run."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def run_workers(
    target: Callable[..., None], shared: tuple[Any, ...], modules: tuple[nn.Module, ...], count: int
) -> None:
    """Fork `count` workers over `modules` in shared memory and wait for all: each calls target(rank, *shared).

    Raises: RuntimeError when a worker fails.
    """
    torch.set_num_threads(1)
    for module in modules:
        module.share_memory()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=(rank, *shared)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    if failed:
        raise RuntimeError(f"training workers failed: {failed}")
