"""The rules of the house that a program can check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ["core", "shared_cache", "sampling", "styles", "preview_engine", "final_engine", "app"]
TORCH = {"torch", "diffusers", "transformers", "peft", "compel"}
SOURCES = sorted(
    path
    for folder in [*FLOORS, "tests", "benchmarks", "models/storybook"]
    for path in (ROOT / folder).rglob("*.py")
    if "work" not in path.relative_to(ROOT).parts
)
MAX_FUNCTION, MAX_FILE = 60, 400


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_keeps_the_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    room, names = path.relative_to(ROOT).parts[0], set(imported(tree))
    assert text.count("\n") <= MAX_FILE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION, node.name
    if room in FLOORS:
        above = set(FLOORS[FLOORS.index(room) + 1 :])
        forbidden = above | ({"preview_engine"} if room == "final_engine" else set())
        assert not names & forbidden
    if room in ("core", "app"):
        assert not names & TORCH
