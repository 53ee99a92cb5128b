"""Roles a worker can have."""

from __future__ import annotations

from core.errors import StartupError

ROLES = ("preview", "final", "decode", "finish")


def roles_of(text: str) -> list[str]:
    """Those that a comma list names; it may name none.

    Raises: StartupError for one that there is not.
    """
    named = [role.strip() for role in text.split(",") if role.strip()]
    unknown = [role for role in named if role not in ROLES]
    if unknown:
        raise StartupError(f"unknown role {', '.join(unknown)}", f"use some of {', '.join(ROLES)}")
    return named
