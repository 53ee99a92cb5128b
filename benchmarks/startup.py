"""From the command to the first preview on an installed clone, and the memory of everything while it works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import psutil

from benchmarks.network import free_port
from benchmarks.report import emit
from benchmarks.typists import type_together


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        environment = {**os.environ, "FIRSTLIGHT_PORT": str(port), "FIRSTLIGHT_DATA_DIR": folder}
        started_s = time.monotonic()
        child = subprocess.Popen([sys.executable, "-m", "app.cli", "serve"], env=environment)
        try:
            figures = _measure(child, f"http://127.0.0.1:{port}", started_s)
        finally:
            child.terminate()
            child.wait()
    emit("startup", {}, figures, ["what", "figure"], list(figures.items()))


def _measure(child: subprocess.Popen[bytes], url: str, started_s: float) -> dict[str, float]:
    page_s = _wait(url + "/healthz", started_s)
    ready_s = _wait(url + "/readyz", started_s)
    httpx.post(url + "/api/v1/previews", json={"prompt": "a cat on the beach"}, timeout=120).raise_for_status()
    preview_s = time.monotonic() - started_s
    peak, stop = [0], threading.Event()
    watcher = threading.Thread(target=_watch_memory, args=(child.pid, peak, stop))
    watcher.start()
    for _ in range(4):
        httpx.post(url + "/api/v1/renders", json={"prompt": "a castle in the snow"}, timeout=60).raise_for_status()
    type_together(url.replace("http", "ws") + "/api/v1/live", ["a small red fox in the snow"] * 4)
    stop.set()
    watcher.join()
    return {
        "page_s": round(page_s, 2),
        "ready_s": round(ready_s, 2),
        "first_preview_s": round(preview_s, 2),
        "peak_memory_gb": round(peak[0] / 1e9, 2),
    }


def _wait(url: str, started_s: float) -> float:
    while True:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return time.monotonic() - started_s
        except httpx.TransportError:
            pass
        time.sleep(0.05)


def _watch_memory(pid: int, peak: list[int], stop: threading.Event) -> None:
    """Unique plus shared memory (PSS) of the process and all below it."""
    root = psutil.Process(pid)
    while not stop.wait(0.5):
        total = 0
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        peak[0] = max(peak[0], total)


if __name__ == "__main__":
    main()
