"""What there is and whether it is ready: health, models, styles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response

from app.standing import Stand, standing
from app.wants import Here
from core.errors import NotFound
from core.profile import ModelProfile, Pool
from core.recipe import Handoff
from styles.catalogue import Catalogue, Style

router = APIRouter()


@router.get("/healthz")
@router.head("/healthz", include_in_schema=False)
async def healthz() -> dict[str, str]:
    """The web process answers."""
    return {"status": "ok"}


@router.get("/readyz")
@router.head("/readyz", include_in_schema=False)
def readyz(context: Here, response: Response) -> dict[str, Any]:
    """200 only when a warm worker stands for every role; else what is waited for."""
    found = standing(context.registry, context.profile.model)
    ready = found.stand is Stand.READY
    response.status_code = 200 if ready else 503
    return {
        "ready": ready,
        "state": found.stand.value,
        "reason": found.reason,
        "roles": {role: count > 0 for role, count in found.workers.items()},
        "workers": found.workers,
    }


@router.get("/api/v1/workers")
def workers(context: Here) -> dict[str, Any]:
    """The workers that live, and the model that this server asks for."""
    return {
        "now_s": context.clock(),
        "model": context.profile.id,
        "version": context.profile.version,
        "workers": context.registry.workers(),
    }


@router.get("/api/v1/models")
def models(context: Here) -> dict[str, Any]:
    """Both pools: model, licence, sizes, limits, defaults."""
    return describe_models(context.profile)


@router.get("/api/v1/styles")
def styles(context: Here) -> dict[str, Any]:
    """All styles that a request may name, and why others are left out."""
    return describe_catalogue(context.catalogue)


@router.get("/api/v1/styles/{style_id}")
def style(style_id: str, context: Here) -> dict[str, Any]:
    for known in context.catalogue.all():
        if known.id == style_id:
            return describe_style(known)
    raise NotFound("no such style")


def describe_models(profile: ModelProfile) -> dict[str, Any]:
    limits = profile.limits
    return {
        "preview": _describe_pool(profile, profile.preview, limits.max_preview_steps),
        "final": {
            **_describe_pool(profile, profile.final, limits.max_steps),
            "samplers": [sampler.value for sampler in profile.final.samplers],
            "handoffs": [handoff.value for handoff in Handoff],
        },
    }


def _describe_pool(profile: ModelProfile, pool: Pool, max_steps: int) -> dict[str, Any]:
    limits = profile.limits
    return {
        "id": profile.id,
        "version": profile.version,
        "licence": pool.licence,
        "negative_prompts": pool.negatives,
        "buckets": [[bucket.width, bucket.height] for bucket in pool.buckets],
        "limits": {
            "prompt_characters": limits.prompt_characters,
            "steps": [1, max_steps],
            "guidance_scale": [0.0, limits.max_guidance_scale],
            "seed": [0, limits.max_seed],
            "side": [limits.min_side, limits.max_side],
            "styles": limits.max_styles,
            "style_weight": [0.0, limits.max_style_weight],
            "images": [1, limits.max_images],
        },
        "defaults": {"steps": pool.steps, "guidance_scale": pool.guidance_scale, "sampler": pool.sampler.value},
    }


def describe_catalogue(catalogue: Catalogue) -> dict[str, Any]:
    return {
        "styles": [describe_style(style) for style in catalogue.all()],
        "problems": [asdict(problem) for problem in catalogue.problems],
        "warnings": [asdict(warning) for warning in catalogue.warnings],
    }


def describe_style(style: Style) -> dict[str, Any]:
    """Without the path, which is nobody's business outside."""
    return {name: value for name, value in asdict(style).items() if name != "path"}
