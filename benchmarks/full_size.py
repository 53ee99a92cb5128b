"""SDXL at its full size with random weights: the product loads it from disk and paints; peak memory is reported.

python -m benchmarks.full_size [--family flux] [--work FOLDER]. Needs 8 GB of disk and what the table says of memory;
about ten minutes on two cores. Layouts: the UNet in shards of the variant fp16 for the app, then one file as
checkpoints are shared. FLUX: at its full width with fewer blocks, its two kinds in the folders of the hub.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import emit

UNET_PARAMETERS = 2_567_463_684
GB = 1e9
SIDE = 512
FLUX_PREVIEW_SIDE = 256
READY_S = 840
NAMES = {"preview": "preview.jpg", "render": "render.png"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder for the weights; a temporary one by default")
    parser.add_argument("--family", choices=list(REPORTS), default="sdxl")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load is not None:
        return print(json.dumps(load(given.load)))
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        REPORTS[given.family](Path(folder))


def report_sdxl(folder: Path) -> None:
    from benchmarks.random_sdxl import (
        networks,
        parameters,
        write_adapter,
        write_published,
        write_single_file,
        write_small_decoder,
    )

    counts = {name: parameters(network) for name, network in networks().items()}
    assert counts["unet"] == UNET_PARAMETERS, counts
    write_published(folder / "model", shards=True)
    write_small_decoder(folder / "small")
    write_adapter(folder / "adapter.safetensors")
    painted = paint(folder, sdxl_profile())
    for path in (folder / "model").rglob("*.safetensors"):
        path.unlink()
    write_single_file(folder / "checkpoint.safetensors")
    single = loaded(folder / "checkpoint.safetensors")
    rows = [
        ["app, fp16 shards, both pools", painted["ready_s"], painted["peak_gb"]],
        [f"  preview {SIDE}x{SIDE}, 1 step", painted["preview_s"], ""],
        [f"  final {SIDE}x{SIDE}, 2 steps", painted["render_s"], ""],
        ["single file, final pool and decoder", single["seconds"], single["peak_gb"]],
    ]
    config = {"weights": "bfloat16", "compute": "float32", "side": SIDE, "parameters": counts}
    emit("full_size", config, {**painted, "single_file": single}, ("what", "seconds", "peak GB"), rows)


def report_flux(folder: Path) -> None:
    from benchmarks.random_flux import BLOCKS, write_kind

    counts = {kind: write_kind(folder / kind, kind) for kind in ("schnell", "dev")}
    painted = paint(folder, flux_profile())
    rows = [
        ["app, both kinds, both pools", painted["ready_s"], painted["peak_gb"]],
        [f"  preview {FLUX_PREVIEW_SIDE}x{FLUX_PREVIEW_SIDE}, 1 step", painted["preview_s"], ""],
        [f"  final {SIDE}x{SIDE}, 2 steps", painted["render_s"], ""],
    ]
    config = {"family": "flux", "weights": "bfloat16", "compute": "float32", "side": SIDE, **BLOCKS}
    emit("full_size", {**config, "transformer_parameters": counts}, painted, ("what", "seconds", "peak GB"), rows)


REPORTS = {"sdxl": report_sdxl, "flux": report_flux}


def sdxl_profile() -> dict[str, Any]:
    pool = {"source": "base", "sampler": "euler", "buckets": [[SIDE, SIDE]]}
    extra = {"adapter": "own:adapter.safetensors", "decoder": "own:small"}
    return {
        "id": "full-size",
        "sources": {"base": {"path": "model", "variant": "fp16"}, "own": {"path": "."}},
        "preview": {**pool, **extra, "steps": 1, "guidance_scale": 1.0},
        "final": {**pool, "steps": 2, "guidance_scale": 5.0},
        "options": {"weights": "bfloat16"},
    }


def flux_profile() -> dict[str, Any]:
    pool = {"sampler": "euler", "buckets": [[SIDE, SIDE]]}
    return {
        "id": "full-width",
        "family": "flux",
        "sources": {"schnell": {"path": "schnell"}, "dev": {"path": "dev"}},
        "preview": {
            **pool,
            "source": "schnell",
            "buckets": [[FLUX_PREVIEW_SIDE, FLUX_PREVIEW_SIDE]],
            "steps": 1,
            "guidance_scale": 0.0,
        },
        "final": {**pool, "source": "dev", "steps": 2, "guidance_scale": 3.5},
        "options": {"weights": "bfloat16"},
    }


def paint(folder: Path, profile: dict[str, Any]) -> dict[str, Any]:
    """A preview and a render through `firstlight serve`, and what its worker took."""
    (folder / "full-size.json").write_text(json.dumps(profile))
    env = {
        **os.environ,
        "FIRSTLIGHT_MODEL": str(folder / "full-size.json"),
        "FIRSTLIGHT_DATA_DIR": str(folder / "data"),
        "FIRSTLIGHT_MAX_PREVIEW_ROWS": "1",
        "FIRSTLIGHT_MAX_FINAL_ROWS": "2",
        "FIRSTLIGHT_TORCH_THREADS": str(os.cpu_count()),
    }
    started_s = time.monotonic()
    server = subprocess.Popen(_app("serve", "--port", "0", "--json"), env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        assert "url" in told, told
        env["FIRSTLIGHT_URL"] = told["url"]
        worker = _ready_worker(env)
        ready_s = time.monotonic() - started_s
        times = {f"{verb}_s": _timed(verb, env, folder / name) for verb, name in NAMES.items()}
        return {"ready_s": round(ready_s, 1), **times, "peak_gb": _peak_gb(int(worker["pid"]))}
    finally:
        server.terminate()
        server.wait(60)


def _ready_worker(env: dict[str, str]) -> dict[str, Any]:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        told = subprocess.run(_app("workers", "--json"), env=env, capture_output=True, text=True, check=True)
        for worker in json.loads(told.stdout)["workers"]:
            if set(worker["ready"]) == set(worker["roles"]) != set():
                return dict(worker)
        time.sleep(2)
    raise TimeoutError("the worker was not ready in time")


def _timed(verb: str, env: dict[str, str], picture: Path) -> float:
    started_s = time.monotonic()
    command = _app(verb, "a lantern on a quiet harbour wall", "--seed", "7", "-o", str(picture), "--json")
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 0 and picture.is_file(), told.stdout + told.stderr
    return round(time.monotonic() - started_s, 1)


def _app(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", *arguments]


def _peak_gb(pid: int) -> float:
    """The most memory that a process had at once, pages of the weights' files included."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(status["VmHWM"].split()[0]) * 1024 / GB, 2)


def loaded(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint loaded in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.full_size", "--load", str(checkpoint)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]))


def load(checkpoint: Path) -> dict[str, Any]:
    import torch

    from sampling.model import load_model

    started_s = time.monotonic()
    model = load_model(checkpoint, dtype=torch.bfloat16, roles=("final", "decode"))
    assert sum(weight.numel() for weight in model.network("final").parameters()) == UNET_PARAMETERS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB
    return {"seconds": round(time.monotonic() - started_s, 1), "peak_gb": round(peak, 2)}


if __name__ == "__main__":
    main()
