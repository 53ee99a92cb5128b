"""Measures what each part of a render takes on this device: the cost table's ground."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from core.cost import ANY, CostTable, Identity, Part
from core.profile import Bucket, ModelProfile
from core.recipe import Handoff, Recipe
from core.settings import Settings
from final_engine.similarity import similarity
from sampling.bank import Bank
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.embedding import Embedding
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.picture import Pixels, fit, to_png
from sampling.rows import Row
from sampling.safety import ImageClassifier
from sampling.threads import use_threads
from sampling.warmup import warm
from shared_cache.embeddings import ByteLRU
from shared_cache.objects import DiskObjects

PROMPT = "a lantern on a quiet harbour wall"
TIMED_STEPS = 2
ALIKE = 0.9  # areas; steps of such buckets differ by some 10 %, as the machine itself does


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. Units: seconds."""

    part: Part
    bucket: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts of a final worker, loaded and warm."""

    model: Model
    encoder: Encoder
    loop: StepLoop
    decoder: Decoder
    classifier: ImageClassifier


def open_bench(settings: Settings) -> Bench:
    """The parts as a worker of the final and decode roles holds them."""
    use_threads(settings.torch_threads)
    model = load_model(settings.model, settings.device, roles=("final", "decode"))
    encoder, decoder = Encoder(model, ByteLRU(2**24), {}), Decoder(model, "final")
    bank = Bank(model, {}, 1, lambda: None)
    loop = StepLoop(Denoiser(model, "final"), bank, settings.max_final_rows, perf_counter)
    warm(loop, encoder, decoder, model.profile.final, ())
    return Bench(model, encoder, loop, decoder, ImageClassifier(settings.nsfw_threshold))


def identity_of(model: Model) -> Identity:
    """What figures that were measured with this model in this process are true of."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else _processor()
    profile = model.profile
    dtype = model.tuning.label(str(model.dtype).removeprefix("torch."))
    return Identity(profile.id, profile.version, device, dtype, torch.get_num_threads())


def calibrate(bench: Bench, max_rows: int, rounds: int) -> Iterator[Sample]:
    """Every part, bucket and count in each round, so that a minute in which the machine is slow weighs on all alike."""
    for number in range(rounds):
        yield encode_sample(bench.encoder, number)
        yield from step_samples(bench, range(1, max_rows + 1))
        yield from _decode_samples(bench)
        yield from _finish_samples(bench)


def samples_of_a_round(profile: ModelProfile, max_rows: int) -> int:
    return len(profile.final.buckets) * (max_rows + profile.limits.max_images) + 3


def table_of(samples: Iterable[Sample]) -> CostTable:
    """The median of each shape's measurements."""
    measured: dict[tuple[Part, str, int], list[float]] = {}
    for sample in samples:
        measured.setdefault((sample.part, sample.bucket, sample.count), []).append(sample.seconds)
    seconds: dict[Part, dict[str, dict[int, float]]] = {}
    for (part, bucket, count), values in measured.items():
        seconds.setdefault(part, {}).setdefault(bucket, {})[count] = statistics.median(values)
    return CostTable(seconds)


def encode_sample(encoder: Encoder, number: int = 0) -> Sample:
    """A prompt that is not in the cache."""
    text = f"{PROMPT} {perf_counter()} {number}"
    return Sample(Part.ENCODE, ANY, 1, _seconds(lambda: encoder.encode(text)))


def step_samples(bench: Bench, counts: Sequence[int]) -> Iterator[Sample]:
    """Steps of every bucket."""
    for bucket in bench.model.profile.final.buckets:
        for count in counts:
            yield Sample(Part.STEP, str(bucket), count, _batch_s(bench, bucket, count))


def first_samples(bench: Bench, counts: Sequence[int]) -> Iterator[Sample]:
    """A first measure where nobody has calibrated: a bucket of each area stands for the others of about that area."""
    yield encode_sample(bench.encoder)
    for buckets in _by_area(bench.model.profile.final.buckets):
        for count in counts:
            seconds = _batch_s(bench, buckets[0], count)
            yield from (Sample(Part.STEP, str(bucket), count, seconds) for bucket in buckets)


def _by_area(buckets: Iterable[Bucket]) -> list[list[Bucket]]:
    """Buckets whose areas are about alike, the largest first."""
    groups: list[list[Bucket]] = []
    for bucket in sorted(buckets, key=lambda bucket: bucket.area, reverse=True):
        if groups and bucket.area >= ALIKE * groups[-1][0].area:
            groups[-1].append(bucket)
        else:
            groups.append([bucket])
    return groups


def _batch_s(bench: Bench, bucket: Bucket, count: int) -> float:
    """A step of unguided rows, each of which is one network row; the first step sets the batch up and is not timed."""
    profile, embedding = bench.model.profile, bench.encoder.encode(PROMPT)
    for n in range(count):
        bench.loop.join(_row(profile, bucket, f"calibrate-{n}", 1 + TIMED_STEPS, embedding))
    return statistics.fmean([_step_s(bench.loop) for _ in range(1 + TIMED_STEPS)][1:])


def _decode_samples(bench: Bench) -> Iterator[Sample]:
    profile = bench.model.profile
    for bucket in profile.final.buckets:
        for count in range(1, profile.limits.max_images + 1):
            latents = _latents(bench.model, bucket, count)
            yield Sample(Part.DECODE, str(bucket), count, _seconds(partial(bench.decoder.decode, latents)))


def _finish_samples(bench: Bench) -> Iterator[Sample]:
    """Safety and publish of one picture of the first bucket, with a preview to be compared with."""
    bucket = bench.model.profile.final.buckets[0]
    picture = bench.decoder.decode(_latents(bench.model, bucket, 1))[0]
    yield Sample(Part.SAFETY, ANY, 1, _seconds(lambda: bench.classifier.allows(picture)))
    recipe = _recipe(bench.model.profile, bucket)
    with tempfile.TemporaryDirectory() as folder:
        objects = DiskObjects(Path(folder), b"calibrate" * 4, None)
        yield Sample(Part.PUBLISH, ANY, 1, _seconds(lambda: _publish(objects, picture, recipe)))


def _publish(objects: DiskObjects, picture: Pixels, recipe: Recipe) -> None:
    fitted = fit(picture, recipe.width, recipe.height)
    objects.put("renders/calibrate/0.png", to_png(fitted, recipe), "image/png")
    similarity(picture, fitted)


def _row(profile: ModelProfile, bucket: Bucket, name: str, steps: int, embedding: Embedding) -> Row:
    return Row(
        id=name,
        bucket=bucket,
        steps=steps,
        guidance_scale=1.0,
        sampler=profile.final.sampler,
        seed=0,
        styles=(),
        embedding=embedding,
    )


def _step_s(loop: StepLoop) -> float:
    report = loop.step()
    for _, error in report.failed:
        raise error
    return report.seconds


def _latents(model: Model, bucket: Bucket, count: int) -> torch.Tensor:
    shape = (count, model.latent_channels, bucket.height // model.vae_scale, bucket.width // model.vae_scale)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.5


def _recipe(profile: ModelProfile, bucket: Bucket) -> Recipe:
    pool = profile.final
    return Recipe(
        prompt=PROMPT,
        negative_prompt="",
        seed=0,
        width=bucket.width,
        height=bucket.height,
        steps=pool.steps,
        guidance_scale=pool.guidance_scale,
        sampler=pool.sampler,
        styles=(),
        model_id=profile.id,
        model_version=profile.version,
        handoff=Handoff.FRESH,
    )


def _seconds(work: Callable[[], object]) -> float:
    started_s = perf_counter()
    work()
    return perf_counter() - started_s


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
