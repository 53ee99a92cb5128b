"""Keystroke to decoded picture, beside the bare compute of one preview and beside the obvious alternative."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.temporary import server
from benchmarks.report import emit, percentile
from benchmarks.typists import KEYS_PER_S, type_together
from core.settings import load_settings

SENTENCE = "a small red fox in the snow"
SENTENCES = (SENTENCE, "a cup of coffee on the beach", "two owls in a forest at night")
SETTLE_S = 4.0
TYPISTS = (1, 4, 8)
PATIENCE_S = 60.0


class BareCompute:
    """Seconds of each part of one preview when nothing else runs.

    Sampled before and after the typists, since a shared machine is faster at one minute than at the next.
    """

    def __init__(self) -> None:
        from benchmarks.bundle import load_parts
        from sampling.safety import ImageClassifier

        self._parts, self._classifier = load_parts(), ImageClassifier(0.85)
        self._times: dict[str, list[float]] = {name: [] for name in ("encode", "steps", "decode", "safety", "jpeg")}
        self._count = 0
        self.sample(3)
        for values in self._times.values():
            values.clear()

    def sample(self, count: int = 15) -> None:
        for _ in range(count):
            self._count += 1
            self._preview(f"{SENTENCE} {self._count}")

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._times.items()}

    def _preview(self, prompt: str) -> None:
        from benchmarks.bundle import run
        from sampling.picture import to_jpeg

        parts = self._parts
        self._timed("encode", lambda: parts.encoder.encode(prompt))
        row = parts.row("preview", prompt, prompt, seed=7)
        self._timed("steps", lambda: run(parts.preview, [row]))
        picture = self._timed("decode", lambda: parts.decoder.decode(row.latents[None]))[0]
        self._timed("safety", lambda: self._classifier.allows(picture))
        self._timed("jpeg", lambda: to_jpeg(picture))

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        started_s = perf_counter()
        result = work()
        self._times[name].append(perf_counter() - started_s)
        return result


def ours() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(data_dir=Path(folder), port=0)
        with server(settings, lambda text: None) as client:
            live = client.url.replace("http", "ws", 1) + "api/v1/live"
            type_together(live, [SENTENCE[:5]])
            return [_measure(client.url, live, count) for count in TYPISTS]


def _measure(url: str, live: str, count: int) -> dict[str, Any]:
    time.sleep(SETTLE_S)
    before = _steps(url)
    typings = [t for sentence in SENTENCES for t in type_together(live, [sentence] * count)]
    time.sleep(SETTLE_S)
    run, wasted = (after - earlier for after, earlier in zip(_steps(url), before, strict=True))
    return {
        **_figures([t.latency_s for t in typings]),
        "typists": count,
        "waste": round(wasted / max(run, 1), 3),
        "last_key_p50_s": round(statistics.median(t.last_s for t in typings), 3),
        "pictures_per_typist": round(statistics.mean(t.pictures for t in typings), 1),
    }


def _steps(url: str) -> tuple[float, float]:
    """Steps that the preview pool made, and those of them whose picture nobody saw."""
    families = text_string_to_metric_families(httpx.get(f"{url}metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.labels.get("pool") == "preview"]

    def total(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == name)

    return total("firstlight_batch_rows_sum"), total("firstlight_wasted_steps_total")


def _figures(latencies: list[list[float]]) -> dict[str, float]:
    pooled = [value for values in latencies for value in values]
    return {"p50_s": round(percentile(pooled, 0.5), 3), "p95_s": round(percentile(pooled, 0.95), 3)}


def alternative() -> list[dict[str, Any]]:
    figures = []
    for count in TYPISTS:
        with _gradio_app() as url:  # a new one each time: the queue of the last is not over
            figures.append({**_figures(_ask_together(url, count)), "typists": count})
    return figures


@contextmanager
def _gradio_app() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.alternative", str(port)], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(url, timeout=2)
                break
            except httpx.TransportError:
                time.sleep(0.2)
        yield url
    finally:
        child.terminate()
        child.wait()


def _ask_together(url: str, count: int) -> list[list[float]]:
    results: list[list[float]] = [[] for _ in range(count)]
    threads = [threading.Thread(target=_ask, args=(url, result)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _ask(url: str, latency_s: list[float]) -> None:
    """Submits every key; a key is answered by its own picture or a newer one, whichever comes first.

    After PATIENCE_S nobody waits any more: the time so far stands for the rest, so the figures are "at least".
    """
    from gradio_client import Client

    client = Client(url, verbose=False)
    jobs, sent_s = [], []
    started_s = time.monotonic()
    for n in range(1, len(SENTENCE) + 1):
        time.sleep(max(0.0, started_s + n / KEYS_PER_S - time.monotonic()))
        sent_s.append(time.monotonic())
        jobs.append(client.submit(SENTENCE[:n], api_name="/paint"))
    done_s = []
    for job in jobs:
        with suppress(TimeoutError):
            job.result(timeout=max(0.0, started_s + PATIENCE_S - time.monotonic()))
        done_s.append(time.monotonic())
    latency_s.extend(done - sent for done, sent in zip(done_s, sent_s, strict=True))


def main() -> None:
    compute = BareCompute()
    compute.sample()
    mine = ours()
    compute.sample()
    bare = compute.medians()
    bare_s = sum(bare.values())
    other = alternative()
    rows = [
        (
            m["typists"],
            m["p50_s"],
            m["p95_s"],
            m["p95_s"] / bare_s,
            m["last_key_p50_s"],
            f"{m['waste']:.0%}",
            o["p50_s"],
            o["p95_s"],
            o["p95_s"] / m["p95_s"],
        )
        for m, o in zip(mine, other, strict=True)
    ]
    emit(
        "preview_latency",
        {"keys_per_s": KEYS_PER_S, "sentences": SENTENCES, "stock_patience_s": PATIENCE_S, "steps": 4},
        {
            "bare_compute_s": {**{k: round(v, 4) for k, v in bare.items()}, "total": round(bare_s, 4)},
            "ours": mine,
            "gradio_queue_stock_pipeline": other,
            "p95_over_bare_one_typist": round(mine[0]["p95_s"] / bare_s, 3),
        },
        ["typists", "p50 s", "p95 s", "p95 / bare", "last key s", "waste", "stock p50", "stock p95", "stock / ours"],
        rows,
    )


if __name__ == "__main__":
    main()
