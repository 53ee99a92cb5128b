"""Names of everything that stands in Redis; no other module spells a key."""

from __future__ import annotations

import hashlib

from core.profile import Bucket

QUEUE = "fl:queue"
OPEN = "fl:open"
EMBEDDINGS = "fl:embeddings"
EMBEDDINGS_BYTES = "fl:embeddings:bytes"
DUE = "fl:due"
PULSE = "fl:pulse"
WORKERS = "fl:workers"
METERED = "fl:metered"
RENDER_PREFIX = "fl:render:"
LANE_PREFIX = "fl:lane:"
STAGE_PREFIX = "fl:stage:"
LATENTS_PREFIX = "fl:latents:"
EMBEDDING_PREFIX = "fl:embedding:"
WORKER_PREFIX = "fl:worker:"
METRICS_PREFIX = "fl:metrics:"


def lost(members: str) -> str:
    return f"{members}:lost"


def mail(session: str) -> str:
    return f"fl:mail:{session}"


def mail_ready(model: str) -> str:
    return f"fl:mail:ready:{model}"


def closed(session: str) -> str:
    return f"fl:closed:{session}"


def wake(role: str) -> str:
    return f"fl:wake:{role}"


def reply(reply_to: str) -> str:
    return f"fl:reply:{reply_to}"


def preview(preview_id: str) -> str:
    return f"fl:preview:{preview_id}"


def render(render_id: str) -> str:
    return RENDER_PREFIX + render_id


def renders(owner: str) -> str:
    return f"fl:renders:{owner}"


def events(render_id: str) -> str:
    return f"fl:events:{render_id}"


def feed(owner: str) -> str:
    return f"fl:feed:{owner}"


def costs(model_version: str) -> str:
    return f"fl:costs:{model_version}"


def idempotency(owner: str, key: str) -> str:
    """The caller's key stands hashed: any length and any characters fit, and owners cannot collide."""
    return f"fl:idem:{owner}:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def lane(priority: str, bucket: str | Bucket) -> str:
    return f"{LANE_PREFIX}{priority}:{bucket}"


def stream(name: str) -> str:
    """A stage's stream by its bare name ("decode"); a full key stays as it is."""
    return name if name.startswith("fl:") else STAGE_PREFIX + name


def embedding(key: str) -> str:
    return EMBEDDING_PREFIX + key


def latents(key: str) -> str:
    """A payload's key by its bare name; a full key stays as it is."""
    return key if key.startswith(LATENTS_PREFIX) else LATENTS_PREFIX + key
