"""Small line charts as SVG, for a page of documentation in light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, MARGIN = 420, 300, 46
COLOURS = ("#3b82f6", "#10b981", "#f59e0b", "#ef4444", "#8b5cf6", "#ec4899", "#14b8a6", "#64748b")
STYLE = "text{font:12px sans-serif;fill:#6b7280}.grid{stroke:#9ca3af;stroke-opacity:.35}path{fill:none;stroke-width:2}"
Panel = tuple[str, str, float]  # title, field, top of the axis


def charts(curves: Mapping[str, Sequence[Mapping[str, Any]]], panels: Sequence[Panel], x: str, x_label: str) -> str:
    """One chart beside the other, a curve for each name, and a legend below. Values above an axis leave at its top."""
    low = min(point[x] for points in curves.values() for point in points)
    high = max(point[x] for points in curves.values() for point in points)
    total_height = HEIGHT + 20 + 18 * ((len(curves) + 2) // 3)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(panels)} {total_height}">']
    parts.append(f"<style>{STYLE}</style>")
    for at, (title, field, top) in enumerate(panels):
        parts.append(f'<g transform="translate({at * WIDTH},0)">{_axes(title, x_label, top, low, high)}')
        for (_, points), colour in zip(curves.items(), COLOURS * 3, strict=False):
            spots = [(_across(point[x], low, high), _up(point[field], top)) for point in points]
            line = " L".join(f"{across:.1f},{up:.1f}" for across, up in spots)
            parts.append(f'<path d="M{line}" stroke="{colour}"/>')
        parts.append("</g>")
    return "".join([*parts, _legend(list(curves)), "</svg>\n"])


def _across(value: float, low: float, high: float) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * (value - low) / max(1e-9, high - low)


def _up(value: float, top: float) -> float:
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * min(value, top) / top


def _axes(title: str, x_label: str, top: float, low: float, high: float) -> str:
    parts = [f'<text x="{MARGIN}" y="22" font-weight="bold">{escape(title)}</text>']
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>')
    for step in range(5):
        up, across = top * step / 4, low + (high - low) * step / 4
        y, right = _up(up, top), WIDTH - MARGIN
        parts.append(f'<line class="grid" x1="{MARGIN}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{up:g}</text>')
        parts.append(f'<text x="{_across(across, low, high)}" y="{HEIGHT - 28}" text-anchor="middle">{across:g}</text>')
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    parts = []
    for at, (name, colour) in enumerate(zip(names, COLOURS * 3, strict=False)):
        x, y = MARGIN + (at % 3) * 240, HEIGHT + 12 + 18 * (at // 3)
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    return "".join(parts)
