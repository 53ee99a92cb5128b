"""Roles a worker can have."""

from __future__ import annotations

ROLES = ("preview", "final", "decode", "finish")
