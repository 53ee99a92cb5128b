"""What a model is made of: a profile or somebody's own files become the parts that each pool paints with. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StartupError
from core.profile import Bucket, Limits, ModelProfile, Pool
from core.recipe import Sampler
from core.settings import BUNDLED_MODEL
from core.validate import check_profile
from sampling import layout
from sampling.families import FAMILIES, FLUX_FAMILY, SDXL_FAMILY, Family
from sampling.hub import HUB_ID, pulled
from sampling.layout import Part, fingerprint, read_json, texts_of
from sampling.pool_parts import PoolParts, open_parts
from sampling.tuning import Tuning, check_names

PROFILE_FILE = "storybook.json"  # in a folder: the profile that goes with it
PROFILES = BUNDLED_MODEL.parent.parent / "profiles"
STORYBOOK = "storybook"
NATIVE_SIDE = 1024
NATIVE_BUCKETS = ((1024, 1024), (1152, 896), (896, 1152), (1216, 832), (832, 1216))
NATIVE_STEP = 64
REMEDY = "correct the profile; docs/models.md describes its fields"
FIELDS = {"id", "version", "family", "about", "licence", "commercial", "sources", "preview", "final", "buckets"}
FIELDS |= {"limits", "options", "objects", "places", "colours"}
POOL_FIELDS = {"source", "vae", "decoder", "adapter", "sampler", "steps", "guidance_scale", "buckets"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where some of a profile's files come from: a repository of the hub, or a folder or file of one's own."""

    name: str
    hub: str | None = None
    revision: str = "main"
    variant: str | None = None
    path: Path | None = None
    licence: str = "unknown"
    licence_url: str | None = None
    commercial: bool | None = None

    @property
    def where(self) -> str:
        return str(self.hub or self.path)

    def place(self, profile: str) -> Path:
        """The folder or file. Raises: StartupError when it is not on this machine."""
        if self.path is not None:
            return self.path
        assert self.hub is not None  # a source has one of the two
        found = pulled(self.hub, self.revision)
        if found is None:
            remedy = f"run `firstlight models pull {profile}`; without a network, with --from FOLDER"
            raise StartupError(f"{self.hub} is not on this machine", remedy)
        return found


@dataclass(frozen=True, slots=True)
class Described:
    """A profile as it is written, before its files are looked at."""

    id: str
    path: Path
    fields: Mapping[str, Any]
    sources: Mapping[str, Source]

    @property
    def family(self) -> str:
        return str(self.fields.get("family", SDXL_FAMILY.name))

    def main_source(self, pool: Mapping[str, Any]) -> str:
        """The name of the source that a pool paints with where it names no other."""
        return str(pool.get("source", next(iter(self.sources))))

    @property
    def about(self) -> str:
        return str(self.fields.get("about", ""))


@dataclass(frozen=True, slots=True)
class Plan:
    """tuning: how the profile wants to be run."""

    profile: ModelProfile
    preview: PoolParts
    final: PoolParts
    tuning: Tuning = field(default_factory=Tuning)

    def parts(self) -> list[Part]:
        return [*self.final.parts(), *self.preview.parts()]


def plan_of(model: str | Path) -> Plan:
    """The parts of a profile's name, a profile's file, a folder, a .safetensors checkpoint or an id of the hub.

    Raises: StartupError naming what is missing, broken or of the wrong kind, and what to do.
    """
    profile = profile_path(model)
    if profile is not None:
        return _from_profile(describe(profile))
    path = Path(model).expanduser()
    if path.exists():
        return _from_own(path, path.name if path.is_dir() else path.stem)
    if HUB_ID.fullmatch(str(model)):
        found = pulled(str(model))
        if found is not None:
            return _from_own(found, str(model).rpartition("/")[2])
    raise StartupError(f"there is no model {str(model)!r} here", _remedy_for(str(model)))


def _remedy_for(model: str) -> str:
    known = ", ".join(profile_names())
    pull = f", or fetch it with `firstlight models pull {model}`" if HUB_ID.fullmatch(model) else ""
    return f"name one of {known}, or a folder or .safetensors file that exists{pull}"


def profile_names() -> list[str]:
    return [STORYBOOK, *sorted(path.stem for path in PROFILES.glob("*.json"))]


def profile_path(model: str | Path) -> Path | None:
    """The profile's file where the name, the file or the folder has one."""
    if str(model) == STORYBOOK:
        return BUNDLED_MODEL / PROFILE_FILE
    if str(model) in profile_names():
        return PROFILES / f"{model}.json"
    path = Path(model).expanduser()
    if path.is_dir() and (path / PROFILE_FILE).exists():
        return path / PROFILE_FILE
    return path if path.suffix == ".json" and path.is_file() else None


def folder_of(model: str | Path) -> Path:
    """Where what belongs to a model lies beside it: its styles, the gate's reference and judge."""
    found = profile_path(model) or Path(model).expanduser()
    return found if found.is_dir() else found.parent


def describe(path: Path) -> Described:
    """Raises: StartupError naming the file when it is no profile."""
    fields = read_json(path)
    try:
        sources = {name: _source(name, given, path.parent) for name, given in fields.get("sources", {}).items()}
        if not sources:
            licence = str(fields.get("licence", "unknown"))
            sources = {"": Source("", path=path.parent, licence=licence, commercial=fields.get("commercial"))}
        described = Described(str(fields["id"]), path, fields, sources)
        if described.family not in FAMILIES:
            raise ValueError(f"family {described.family} is none of {', '.join(FAMILIES)}")
        return described
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartupError(f"{path}: {error!r}", REMEDY) from error


def _source(name: str, given: Mapping[str, Any], beside: Path) -> Source:
    fields = dict(given)
    if ("hub" in fields) == ("path" in fields):
        raise ValueError(f"source {name} needs either hub or path")
    if "path" in fields:
        fields["path"] = beside / Path(fields["path"]).expanduser()
    return Source(name, **fields)


def _from_profile(described: Described) -> Plan:
    try:
        return _planned(described)
    except InvalidInput as error:
        raise StartupError(f"{described.path}: {error.message}", "correct the profile") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartupError(f"{described.path}: {error!r}", REMEDY) from error


def _planned(described: Described) -> Plan:
    fields = described.fields
    check_names("the profile", fields, FIELDS)
    for name in ("preview", "final"):
        check_names(name, fields[name], POOL_FIELDS)
    preview, final = _fitting(*(_pool_parts(described, fields[name]) for name in ("preview", "final")))
    family = final.family
    if family.name != described.family:
        raise ValueError(f"family is {described.family}, the files are of {family.name}")
    pools = [_pool(described, fields[name], parts) for name, parts in (("preview", preview), ("final", final))]
    profile = ModelProfile(
        id=described.id,
        version=str(fields.get("version") or _version(preview, final)),
        preview=pools[0],
        final=pools[1],
        limits=_limits(pools[1], fields.get("limits", {})),
        styles=_styles(described.path.parent),
    )
    check_profile(profile)
    return Plan(profile, preview, final, Tuning.parse(fields.get("options", {})))


def _pool(described: Described, fields: Mapping[str, Any], parts: PoolParts) -> Pool:
    sizes = fields.get("buckets") or described.fields.get("buckets") or []
    buckets = tuple(Bucket(_whole(width), _whole(height)) for width, height in sizes)
    if not buckets:
        raise ValueError("buckets is empty")
    _check_sides(buckets, parts)
    used = [described.sources[name].licence for name in _used(described, fields)]
    return Pool(
        sampler=_sampler(fields["sampler"], parts.family),
        steps=_whole(fields["steps"]),
        guidance_scale=float(fields["guidance_scale"]),
        buckets=buckets,
        licence=str(described.fields.get("licence") or "; ".join(dict.fromkeys(used))),
        samplers=parts.family.samplers,
        negatives=parts.family.negatives,
    )


def _sampler(name: str, family: Family) -> Sampler:
    sampler = Sampler(name)
    if sampler not in family.samplers:
        raise ValueError(f"sampler {sampler} is not for {family.name}; possible: {', '.join(family.samplers)}")
    return sampler


def _check_sides(buckets: tuple[Bucket, ...], parts: PoolParts) -> None:
    """What the network sees as one must not be cut."""
    unit = parts.family.patch * parts.pixels_a_latent
    for bucket in buckets:
        if any(side < unit or side % unit for side in (bucket.width, bucket.height)):
            raise ValueError(f"bucket {bucket}: both sides must be multiples of {unit}")


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is no whole number")
    return number


def _styles(beside: Path) -> Path | None:
    folder = beside / "styles"
    return folder if folder.is_dir() else None


def _used(described: Described, fields: Mapping[str, Any]) -> list[str]:
    """The names of the sources that a pool paints with."""
    main = described.main_source(fields)
    return [main, *(reference(fields[name], main)[0] for name in ("vae", "decoder", "adapter") if fields.get(name))]


def reference(text: str, main: str) -> tuple[str, str]:
    """A file or folder of a source, `source:path`, of the pool's own where no source is named."""
    source, colon, path = text.partition(":")
    return (source, path or ".") if colon else (main, source)


def _pool_parts(described: Described, fields: Mapping[str, Any]) -> PoolParts:
    main = described.main_source(fields)

    def place(name: str) -> Path | None:
        if not fields.get(name):
            return None
        source, path = reference(fields[name], main)
        return described.sources[source].place(described.id) / path

    source = described.sources[main]
    folder, replaced = source.place(described.id), {name: place(name) for name in ("vae", "decoder", "adapter")}
    try:
        return open_parts(folder, source.variant, **replaced)
    except StartupError as error:
        if source.hub is None or error.remedy != layout.REMEDY:
            raise
        raise StartupError(
            error.cause, f"run `firstlight models pull {described.id}` to fetch what is missing"
        ) from error


def _limits(pool: Pool, given: Mapping[str, Any]) -> Limits:
    side = max(max(bucket.width, bucket.height) for bucket in pool.buckets)
    return Limits(**{"max_side": side, **given})


def _version(*pools: PoolParts) -> str:
    """A name for these weights: it changes whenever they do."""
    texts = [path for pool in pools for folder in pool.tokenizers for path in texts_of(folder)]
    adapters = [Part("adapter", {}, (pool.adapter,)) for pool in pools if pool.adapter is not None]
    schedulers = [Part("scheduler", pool.scheduler, ()) for pool in pools]
    return fingerprint([*(part for pool in pools for part in pool.parts()), *adapters, *schedulers], texts)


def _from_own(path: Path, name: str) -> Plan:
    """Somebody's own folder or file: everything comes from its configs."""
    parts, _ = _fitting(*[open_parts(path, None)] * 2)
    buckets = _native_buckets(parts)
    preview, final = _defaults(parts, buckets)
    profile = ModelProfile(
        id=re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "own",
        version=_version(parts),
        preview=preview,
        final=final,
        limits=_limits(final, {}),
        styles=_styles(path),
    )
    return Plan(profile, parts, parts)


def _native_buckets(parts: PoolParts) -> tuple[Bucket, ...]:
    """SDXL's sizes, scaled to the area that the network was made for."""
    sample = parts.network.config.get("sample_size") or NATIVE_SIDE // parts.pixels_a_latent
    side = int(max(sample) if isinstance(sample, list) else sample) * parts.pixels_a_latent
    step = max(parts.pixels_a_latent, NATIVE_STEP * side // NATIVE_SIDE)
    scaled = (
        (max(step, round(side * length / NATIVE_SIDE / step) * step) for length in size) for size in NATIVE_BUCKETS
    )
    return tuple(Bucket(width, height) for width, height in scaled)


def _defaults(parts: PoolParts, buckets: tuple[Bucket, ...]) -> tuple[Pool, Pool]:
    """How to paint with a network of which only the configs are known.

    Source: the published configs: of few-step models LCM's names its scheduler, Turbo's alone samples noise predictions
    at trailing timesteps without zero terminal SNR, and FLUX's reads no guidance.
    """
    config = parts.scheduler
    if parts.family is FLUX_FAMILY:
        pool = partial(Pool, Sampler.EULER, buckets=buckets, samplers=FLUX_FAMILY.samplers, negatives=False)
        if parts.network.config.get("guidance_embeds"):
            return pool(8, 3.5), pool(28, 3.5)
        return pool(4, 0.0), pool(4, 0.0)
    if config.get("_class_name") == "LCMScheduler":
        return Pool(Sampler.LCM, 4, 1.0, buckets), Pool(Sampler.LCM, 8, 1.0, buckets)
    trailing = config.get("timestep_spacing") == "trailing" and not config.get("rescale_betas_zero_snr")
    if trailing and config.get("prediction_type", "epsilon") == "epsilon":
        return Pool(Sampler.EULER_A, 1, 0.0, buckets), Pool(Sampler.EULER_A, 4, 0.0, buckets)
    return Pool(Sampler.DPMPP_2M, 8, 5.0, buckets), Pool(Sampler.EULER, 30, 5.0, buckets)


def _fitting(preview: PoolParts, final: PoolParts) -> tuple[PoolParts, PoolParts]:
    """Raises: StartupError where a part is broken or of the wrong kind, or the pools do not share their latents."""
    for pool in (final,) if preview is final else (final, preview):
        pool.check()
    if preview.latents != final.latents:
        cause = f"previews and finals have other latents: {preview.latents} and {final.latents}"
        raise StartupError(cause, "choose two models of one latent space, so that a render can follow its preview")
    return preview, final
