"""Does the final follow its preview? Similarity under match, balanced and fresh over the same 50 previews."""

from __future__ import annotations

import statistics

import numpy as np
import torch

from benchmarks.bundle import Parts, load_parts, prompts, run
from benchmarks.report import emit, percentile
from core.recipe import Handoff
from final_engine.handoff import start_of
from final_engine.similarity import similarity

COUNT = 50


def main() -> None:
    parts = load_parts()
    texts = prompts(COUNT)
    previews = [parts.row("preview", f"p{i}", text, seed=i) for i, text in enumerate(texts)]
    run(parts.preview, previews)
    shown = parts.decoder.decode(torch.stack([row.latents for row in previews]))
    found = {mode: _finals(parts, mode, texts, [row.latents for row in previews], shown) for mode in Handoff}
    medians = {mode.value: round(statistics.median(values), 4) for mode, values in found.items()}
    shares = {
        "match_above_balanced": _share(found[Handoff.MATCH], found[Handoff.BALANCED]),
        "balanced_above_fresh": _share(found[Handoff.BALANCED], found[Handoff.FRESH]),
    }
    rows = [
        (mode.value, medians[mode.value], percentile(values, 0.1), percentile(values, 0.9))
        for mode, values in found.items()
    ]
    emit(
        "handoff",
        {"prompts": COUNT, "preview_steps": parts.pool("preview").steps, "final_steps": parts.pool("final").steps},
        {"median_similarity": medians, "share_of_prompts": shares},
        ["hand-off", "median", "p10", "p90"],
        rows,
    )


def _finals(
    parts: Parts, mode: Handoff, texts: list[str], latents: list[torch.Tensor], shown: np.ndarray
) -> list[float]:
    rows = []
    for i, text in enumerate(texts):
        start = start_of(mode, latents[i], (latents[i].shape[-2], latents[i].shape[-1]))
        rows.append(
            parts.row(
                "final", f"{mode.value}{i}", text, seed=i, strength=start.strength, init_latents=start.init_latents
            )
        )
    run(parts.final, rows)
    finals = parts.decoder.decode(torch.stack([row.latents for row in rows]))
    return [similarity(preview, final) for preview, final in zip(shown, finals, strict=True)]


def _share(higher: list[float], lower: list[float]) -> float:
    return round(sum(a > b for a, b in zip(higher, lower, strict=True)) / len(higher), 3)


if __name__ == "__main__":
    main()
