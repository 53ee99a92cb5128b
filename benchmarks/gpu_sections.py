"""What is measured on a GPU: each section tells its figures as it finds them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

from benchmarks.bundle import run
from benchmarks.gpu_model import FULL, write_styles
from benchmarks.gpu_run import Check, Figures, seconds_of
from core.profile import Bucket
from core.recipe import Sampler, StyleUse
from sampling.bank import Bank
from sampling.compiled import compilations
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.embedding import Embedding
from sampling.encoder import Encoder
from sampling.layout import SDXL
from sampling.loop import StepLoop
from sampling.model import Model, PoolName
from sampling.rows import Row
from sampling.tuned import quantise
from sampling.tuning import Compile, Tuning
from shared_cache.embeddings import ByteLRU

STYLES = 8
PROMPT = "a lantern on a quiet harbour wall"


def machine(check: Check) -> Figures:
    """The two ceilings: a matrix product in this precision, and a copy in the device's memory."""
    model, side = check.model, 8192 if check.scale is FULL else 256
    a, b = (torch.randn(side, side, device=model.device, dtype=model.dtype) for _ in range(2))
    yield "matrix product", 2 * side**3 / seconds_of(check, lambda: a @ b) / 1e12, "TFLOP/s"
    source = torch.randn(2**28 if check.scale is FULL else 2**16, device=model.device)
    target = torch.empty_like(source)
    took_s = seconds_of(check, lambda: target.copy_(source))
    yield "copy", 2 * source.nbytes / took_s / 1e12, "TB/s"


def loop_of(check: Check, pool: PoolName, model: Model | None = None, paths: dict[str, Path] | None = None) -> StepLoop:
    model = model or check.model
    bank = Bank(model, paths or {}, STYLES, lambda: None, pool)
    return StepLoop(Denoiser(model, pool, check.backend), bank, 2 * max(check.scale.batches), time.perf_counter)


def embedding_of(model: Model) -> Embedding:
    """Of one chunk, with the widths of the model's text encoders."""
    towers = [tower.encoder.config for tower in model.text().towers]
    wide = torch.randn(1, 77, sum(config.hidden_size for config in towers), device=model.device, dtype=model.dtype)
    pooled = torch.randn(1, towers[1].projection_dim, device=model.device, dtype=model.dtype)
    return Embedding(wide, pooled, 8)


def row_of(
    model: Model, side: int, name: str, steps: int, guided: bool = False, style: str = "", one: bool = False
) -> Row:
    embedding = embedding_of(model)
    return Row(
        id=name,
        bucket=Bucket(side, side),
        steps=steps,
        guidance_scale=5.0 if guided else 1.0,
        sampler=Sampler.EULER_A if one else Sampler.EULER,
        seed=7,
        styles=(StyleUse(style, 1.0),) if style else (),
        embedding=embedding,
        negative=embedding if guided else None,
    )


def step_s(check: Check, loop: StepLoop, side: int, count: int, styles: Sequence[str] = ()) -> float:
    """Seconds of one step of so many network rows; the first two set it up."""
    steps = 2 + check.scale.rounds
    names = [styles[i % len(styles)] if styles else "" for i in range(count)]
    rows = [row_of(check.model, side, f"{i}", steps, style=name) for i, name in enumerate(names)]
    return statistics.median(run(loop, rows)[2:])


def step(check: Check) -> Figures:
    loop = loop_of(check, "final")
    yield from steps_of(check, loop)


def steps_of(check: Check, loop: StepLoop) -> Figures:
    for side in reversed(check.sides):
        for count in check.scale.step_rows:
            yield f"{side}² {count} rows", 1000 * step_s(check, loop, side, count), "ms"


def flops(check: Check, side: int) -> float:
    """Floating-point operations of one network row, counted."""
    from torch.utils.flop_counter import FlopCounterMode

    loop = loop_of(check, "final")
    run(loop, [row_of(check.model, side, "0", 1)])  # on a processor the network is recorded here, uncounted
    with FlopCounterMode(display=False) as counter:
        run(loop, [row_of(check.model, side, "0", 1)])
    return float(counter.get_total_flops())


def final(check: Check) -> Figures:
    """A guided render, denoised and decoded: ours, the stock pipeline's, and the least that it can take."""
    side, steps = check.scale.large_side, check.scale.steps
    loop = loop_of(check, "final")
    ours = 1000 * seconds_of(check, lambda: render(check, loop), warm=1)
    yield f"ours, {steps} steps {side}²", ours, "ms"
    stock = 1000 * seconds_of(check, stock_render(check), warm=1)
    yield "stock pipeline", stock, "ms"
    yield "stock over ours", stock / ours, "times"
    rate = check.figures.get("machine", {}).get("matrix product")
    if rate:
        least_s = 2 * steps * flops(check, side) / (1e12 * rate)
        yield "roofline of the steps", 1000 * least_s, "ms"
        yield "ours over roofline", ours / (1000 * least_s), "times"


def render(check: Check, loop: StepLoop) -> None:
    row = row_of(check.model, check.scale.large_side, "final", check.scale.steps, guided=True)
    run(loop, [row])
    Decoder(check.model, "final").decode(row.latents[None])


def stock_render(check: Check) -> Callable[[], object]:
    model, side = check.model, check.scale.large_side
    towers, embedding = model.text().towers, embedding_of(model)
    pipeline = StableDiffusionXLPipeline(
        vae=model.decoder("final"),
        text_encoder=towers[0].encoder,
        text_encoder_2=towers[1].encoder,
        tokenizer=towers[0].tokenizer,
        tokenizer_2=towers[1].tokenizer,
        unet=model.network("final"),
        scheduler=EulerDiscreteScheduler.from_pretrained(SDXL, subfolder="scheduler"),
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    given = {"prompt_embeds": embedding.prompt_embeds, "pooled_prompt_embeds": embedding.pooled}
    given |= {f"negative_{name}": tensor for name, tensor in given.items()}
    return lambda: pipeline(
        **given, height=side, width=side, num_inference_steps=check.scale.steps, guidance_scale=5.0, output_type="np"
    )


def turbo(check: Check) -> Figures:
    """One preview step and its decoding, from accepted to pixels in the host's memory."""
    yield from previews(check, loop_of(check, "preview"))


def previews(check: Check, loop: StepLoop) -> Figures:
    side, alone = check.scale.small_side, 0.0
    for pool in ("preview", "final"):
        decoder, name = Decoder(check.model, pool, max(check.scale.batches)), "TAESD" if pool == "preview" else "VAE"
        for count in check.scale.batches:

            def paint(decoder: Decoder = decoder, count: int = count) -> None:
                rows = [row_of(check.model, side, f"{i}", 1, one=True) for i in range(count)]
                run(loop, rows)
                decoder.decode(torch.stack([row.latents for row in rows]))

            took_s = seconds_of(check, paint)
            alone = took_s if count == 1 else alone
            yield f"{side}² 1 step, {name}, batch {count}", 1000 * took_s, "ms"
            if count == min(8, max(check.scale.batches)):
                yield f"{name}, batch {count} over batch 1", count * alone / took_s, "times"


def slots(check: Check) -> Figures:
    yield from styled(check, check.model)


def styled(check: Check, model: Model) -> Figures:
    """What a style of its own for each row adds to a step, once all of them are at hand."""
    paths = write_styles(check.folder, model.network("final"), STYLES, check.scale.rank)
    loop = loop_of(check, "final", model, paths)
    run(loop, [row_of(model, check.scale.small_side, style, 1, style=style) for style in paths])  # at hand from here
    for side, count in ((check.scale.small_side, max(check.scale.step_rows)), (check.scale.large_side, 2)):
        plain, with_styles = (step_s(check, loop, side, count, names) for names in ((), list(paths)))
        yield f"{side}² {count} rows, each its style", 1000 * with_styles, "ms"
        yield f"{side}² {count} rows, more than without", 100 * (with_styles / plain - 1), "%"


def decode(check: Check) -> Figures:
    for pool, name in (("final", "VAE"), ("preview", "TAESD")):
        decoder = Decoder(check.model, "final" if pool == "final" else "preview")
        for side in check.sides:
            latents = torch.randn(1, 4, side // 8, side // 8, device=check.model.device)
            yield f"{name} {side}²", 1000 * seconds_of(check, lambda d=decoder, x=latents: d.decode(x)), "ms"  # type: ignore[misc]


def encode(check: Check) -> Figures:
    encoder, count = Encoder(check.model, ByteLRU(1)), iter(range(10**6))
    yield "one prompt", 1000 * seconds_of(check, lambda: encoder.encode(f"{PROMPT} {next(count)}")), "ms"


def compiled(check: Check) -> Figures:
    """Blocks compiled for the shapes that count, then traffic of all of them: nothing may be compiled again."""
    yield from with_compiler(check, Compile.REGIONAL, check.scale.step_rows)


def whole(check: Check) -> Figures:
    yield from with_compiler(check, Compile.WHOLE, check.scale.step_rows[:2])


def with_compiler(check: Check, what: Compile, counts: Sequence[int]) -> Figures:
    model = replace(check.model, tuning=Tuning(dtype=check.model.tuning.dtype, compile=what))
    loop = loop_of(check, "final", model)
    assert loop.denoiser.compiled is not None  # it was asked for
    small = sorted({*counts, *(check.scale.batches if what is Compile.REGIONAL else ())})
    shapes = [(check.scale.large_side, count) for count in counts if count <= 2]
    shapes += [(check.scale.small_side, count) for count in small]
    started_s = time.perf_counter()
    with loop.denoiser.compiled.compiling():
        for side, count in shapes:
            run(loop, [row_of(model, side, f"{i}", 1) for i in range(count)])
    yield "compiling", time.perf_counter() - started_s, "s"
    before = compilations()
    for side, count in shapes:
        yield f"{side}² {count} rows", 1000 * step_s(check, loop, side, count), "ms"
    if what is Compile.REGIONAL:
        took_s = seconds_of(check, lambda: render(check, loop), warm=1)
        yield f"final, {check.scale.steps} steps {check.scale.large_side}²", 1000 * took_s, "ms"
        yield from previews(check, loop)
    yield "compiled again", compilations() - before, "times"
    yield "steps that no shape fitted", loop.denoiser.unserved, "steps"


def fewer_bits(check: Check) -> Figures:
    """int8 weights, compiled; the last section but one, since it changes the network."""
    unet = check.model.network("final")
    unet._compiled_call_impl = None  # the section before may have compiled it as one
    quantise(unet, "int8")
    yield from with_compiler(check, Compile.REGIONAL, (1, 2))
