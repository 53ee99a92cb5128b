"""What the app answers is documented."""

import re
from pathlib import Path

import pytest
from fastapi import APIRouter

from app import follow, live, meta, metrics, objects, previews, renders

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "api.md"
ROUTERS: list[APIRouter] = [part.router for part in (follow, live, meta, metrics, objects, previews, renders)]
PATHS = sorted({str(getattr(route, "path")) for router in ROUTERS for route in router.routes})  # noqa: B009


@pytest.mark.parametrize("path", PATHS)
def test_every_route_is_documented(path: str) -> None:
    documented = {re.sub(r"\{[^}]*\}", "{}", found) for found in re.findall(r"(/[^\s`]*)`", DOCS.read_text())}
    assert re.sub(r"\{[^}]*\}", "{}", path) in documented
