"""What the embedding cache saves: encodes for people who type, who ask the same at once, and who want variations.

python -m benchmarks.cache
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from benchmarks.bundle import load_parts, prompts
from benchmarks.report import emit
from sampling.encoder import Encoder
from shared_cache.embeddings import ByteLRU

ASKERS = 32
PEOPLE = 20


def measured(encoder: Encoder, cache: ByteLRU[Any], texts: list[str], threads: int = 1) -> dict[str, Any]:
    before = cache.stats()
    started_s = perf_counter()
    if threads == 1:
        for text in texts:
            encoder.encode(text)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(encoder.encode, texts))
    seconds, after = perf_counter() - started_s, cache.stats()
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return {
        "asked": len(texts),
        "encodes": misses,
        "hit_rate": round(hits / len(texts), 4),
        "ms_each": round(1000 * seconds / len(texts), 3),
        "MiB": round(after.bytes / 2**20, 2),
    }


def main() -> None:
    parts = load_parts()
    cache: ByteLRU[Any] = ByteLRU(64 * 2**20)
    encoder = Encoder(parts.model, cache, {})
    typed = [text[: end + 1] for text in prompts(PEOPLE) for end in range(2, len(text))]
    accepted = [text for text in prompts(PEOPLE) for _ in range(4)]  # four variations of each text that was typed
    runs = {
        f"the same text {ASKERS} times at once": measured(encoder, cache, ["a lighthouse at dusk"] * ASKERS, ASKERS),
        "an empty negative, a hundred renders": measured(encoder, cache, [""] * 100),
        f"{PEOPLE} sentences, letter by letter": measured(encoder, cache, typed),
        "the same sentences, four variations": measured(encoder, cache, accepted),
        "typed again": measured(encoder, cache, typed),
    }
    rows = [[name, *values.values()] for name, values in runs.items()]
    emit("cache", {"budget_mib": 64}, runs, ["load", *next(iter(runs.values()))], rows)


if __name__ == "__main__":
    main()
