"""Finished previews, kept for an hour so that a render can follow them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

import redis

from core.recipe import Recipe
from shared_cache import keys


@dataclass(frozen=True, slots=True)
class StoredPreview:
    """What a preview was made of and came to; latents are safetensors bytes."""

    owner: str
    recipe: Recipe
    latents: bytes
    jpeg: bytes


KEPT_S = 7 * 86400


class Previews:
    def __init__(self, client: redis.Redis, ttl_s: int = 3600) -> None:
        self._client = client
        self._ttl_s = ttl_s

    def put(self, preview_id: str, preview: StoredPreview) -> None:
        key = keys.preview(preview_id)
        fields: dict[str, str | bytes] = {
            "owner": preview.owner,
            "recipe": json.dumps(preview.recipe.as_dict()),
            "latents": preview.latents,
            "jpeg": preview.jpeg,
        }
        with self._client.pipeline() as pipe:
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self._ttl_s)
            pipe.execute()

    def get(self, preview_id: str) -> StoredPreview | None:
        """None when there is none or its hour is over."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(keys.preview(preview_id)))
        if not fields:
            return None
        recipe = Recipe.from_json(fields[b"recipe"].decode())
        return StoredPreview(fields[b"owner"].decode(), recipe, fields[b"latents"], fields[b"jpeg"])


def kept_previews(client: redis.Redis) -> Previews:
    """Accepted previews, named by the render that follows them and kept as long as it may need them."""
    return Previews(client, ttl_s=KEPT_S)
