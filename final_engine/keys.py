"""Names of a render's pictures in the object store."""

from __future__ import annotations


def image_object(render_id: str, index: int) -> str:
    return f"renders/{render_id}/{index}.png"


def preview_object(render_id: str) -> str:
    return f"renders/{render_id}/preview.jpg"
