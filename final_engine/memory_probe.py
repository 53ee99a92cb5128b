"""The process behind `firstlight bench memory`: runs a step of each number of rows, few first, and tells its peaks."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import psutil
import torch

from core.profile import ModelProfile
from core.settings import Settings, load_settings
from final_engine.calibrate import identity_of
from sampling.bank import Bank
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from sampling.safety import ImageClassifier
from sampling.threads import use_threads
from shared_cache.embeddings import ByteLRU

DENSE = "鱻"  # a character that no vocabulary has whole: each becomes several tokens
GUIDANCE = 2.0
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class Probe:
    """All roles loaded, as a worker of all of them holds them."""

    def __init__(self, settings: Settings) -> None:
        use_threads(settings.torch_threads)
        self.model = load_model(settings.model, settings.device)
        self._classifier = ImageClassifier(settings.nsfw_threshold)
        self._encoder = Encoder(self.model, ByteLRU(2**24))
        self._bank = Bank(self.model, {}, 1, lambda: None)
        self._denoiser, self._decoder = Denoiser(self.model, "final"), Decoder(self.model, "final")

    def peak_bytes(self, rows: int) -> int:
        """The most in use so far, after a step and a decode of so many rows, the largest with the longest prompt."""
        loop = StepLoop(self._denoiser, self._bank, rows, perf_counter)
        for i in range(rows // self.model.profile.final.network_rows(GUIDANCE)):
            loop.join(_row(self._encoder, self.model.profile, str(i)))
        report = loop.step()
        for _, error in report.failed:
            raise error
        self._decoder.decode(torch.stack([row.latents for row in report.finished]))
        return _peak_bytes(self.model)


def _row(encoder: Encoder, profile: ModelProfile, name: str) -> Row:
    return Row(
        id=name,
        bucket=max(profile.final.buckets, key=lambda bucket: bucket.area),
        steps=1,
        guidance_scale=GUIDANCE,
        sampler=profile.final.sampler,
        seed=0,
        styles=(),
        embedding=encoder.encode(DENSE * profile.limits.prompt_characters),
        negative=encoder.encode("") if encoder.negatives else None,
    )


def _peak_bytes(model: Model) -> int:
    if model.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(model.device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _memory_bytes(model: Model) -> int:
    """All of the device's; on a processor what the container may use, where that is less than the machine has."""
    if model.device.type == "cuda":
        return int(torch.cuda.get_device_properties(model.device).total_memory)
    total: int = psutil.virtual_memory().total
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def main(counts: Sequence[int]) -> None:
    probe = Probe(load_settings())
    said = {
        "peak_bytes": [probe.peak_bytes(rows) for rows in counts],
        "memory_bytes": _memory_bytes(probe.model),
        "identity": asdict(identity_of(probe.model)),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]])
