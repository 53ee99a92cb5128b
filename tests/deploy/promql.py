"""The part of PromQL that the alert rules use, evaluated over sample series as Prometheus does.

An expression outside that part raises NotImplementedError, so that no rule passes unevaluated.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import promql_parser as ast

LOOKBACK_S = 300.0
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
ARITHMETIC: dict[str, Callable[[float, float], float]] = {"-": operator.sub, "*": operator.mul}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, "<": operator.lt}
AGGREGATES: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "avg": lambda v: math.fsum(v) / len(v)}


@dataclass(frozen=True, slots=True)
class Series:
    """points holds (time, value) in order; None marks the series as stale. Units: seconds."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float | None]]


def parse_series(text: str, values: str, interval_s: float) -> Series:
    """In promtool's notation: `a`, `axn` (n more of the same), `a+bxn`, `a-bxn`, `_` for no sample, `stale`."""
    selector = ast.parse(text)
    labels = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    samples: list[float | str] = []
    for word in values.split():
        run = re.fullmatch(r"(-?[\d.]+)(?:([+-][\d.]+))?x(\d+)", word)
        if run:
            first, by, more = float(run[1]), float(run[2] or 0), int(run[3])
            samples += [first + by * i for i in range(more + 1)]
        else:
            samples.append(word if word in ("_", "stale") else float(word))
    points = [(i * interval_s, None if v == "stale" else float(v)) for i, v in enumerate(samples) if v != "_"]
    return Series(selector.name, labels, points)


def evaluate(expression: str, series: Sequence[Series], at_s: float) -> Vector:
    value = _eval(ast.parse(expression), series, at_s)
    assert isinstance(value, dict), "an alert needs a vector"
    return value


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric that an expression names, with the labels that are asked of it: matched on or grouped by."""
    return list(_selectors(ast.parse(expression), frozenset()))


def grouping(expression: str) -> set[str]:
    """Labels of the outermost aggregations: what a legend can show."""
    node = ast.parse(expression)
    while True:
        match node:
            case ast.ParenExpr():
                node = node.expr
            case ast.BinaryExpr():
                node = node.rhs if isinstance(node.lhs, ast.NumberLiteral) else node.lhs
            case ast.Call():
                node = node.args[-1]
            case ast.AggregateExpr():
                return set(node.modifier.labels) - {"le"} if node.modifier else set()
            case _:
                return set()


def _selectors(node: Any, grouped: frozenset[str]) -> Iterator[tuple[str, set[str]]]:
    match node:
        case ast.VectorSelector():
            yield node.name, {matcher.name for matcher in node.matchers.matchers} | grouped
        case ast.MatrixSelector():
            yield from _selectors(node.vector_selector, grouped)
        case ast.AggregateExpr():
            yield from _selectors(node.expr, grouped | frozenset(node.modifier.labels if node.modifier else ()))
        case ast.Call():
            for argument in node.args:
                yield from _selectors(argument, grouped)
        case ast.BinaryExpr():
            yield from _selectors(node.lhs, grouped)
            yield from _selectors(node.rhs, grouped)
        case ast.ParenExpr():
            yield from _selectors(node.expr, grouped)
        case ast.NumberLiteral():
            return
        case _:
            raise NotImplementedError(type(node).__name__)


def _eval(node: Any, series: Sequence[Series], at_s: float) -> Vector | float:
    match node:
        case ast.NumberLiteral():
            return float(node.val)
        case ast.ParenExpr():
            return _eval(node.expr, series, at_s)
        case ast.VectorSelector():
            return _instant(node, series, at_s)
        case ast.AggregateExpr():
            return _aggregate(node, _vector(node.expr, series, at_s))
        case ast.Call() if node.func.name == "abs":
            return {labels: abs(value) for labels, value in _vector(node.args[0], series, at_s).items()}
        case ast.Call() if node.func.name == "rate":
            return _rate(node.args[0], series, at_s)
        case ast.BinaryExpr():
            return _binary(str(node.op), _eval(node.lhs, series, at_s), _eval(node.rhs, series, at_s))
    raise NotImplementedError(f"{type(node).__name__} {node}")


def _vector(node: Any, series: Sequence[Series], at_s: float) -> Vector:
    value = _eval(node, series, at_s)
    assert isinstance(value, dict)
    return value


def _matching(node: Any, series: Sequence[Series]) -> Iterator[Series]:
    for one in series:
        if one.name == node.name:
            for matcher in node.matchers.matchers:
                if matcher.op != ast.MatchOp.Equal:
                    raise NotImplementedError(str(matcher.op))
            if all(one.labels.get(matcher.name, "") == matcher.value for matcher in node.matchers.matchers):
                yield one


def _instant(node: Any, series: Sequence[Series], at_s: float) -> Vector:
    found: Vector = {}
    for one in _matching(node, series):
        known = [value for time_s, value in one.points if at_s - LOOKBACK_S < time_s <= at_s]
        if known and known[-1] is not None:
            found[frozenset(one.labels.items())] = known[-1]
    return found


def _rate(node: Any, series: Sequence[Series], at_s: float) -> Vector:
    found: Vector = {}
    start_s = at_s - node.range.total_seconds()
    for one in _matching(node.vector_selector, series):
        points = [(t, v) for t, v in one.points if start_s <= t <= at_s and v is not None]
        if len(points) > 1:
            found[frozenset(one.labels.items())] = _rate_of(points, start_s, at_s)
    return found


def _rate_of(points: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    """With counter resets, and carried to the ends of the window where samples come close to them."""
    values = [value for _, value in points]
    increase = math.fsum(b - a if b >= a else b for a, b in pairwise(values))
    sampled_s = points[-1][0] - points[0][0]
    usual_s = sampled_s / (len(points) - 1)
    before_s, after_s = points[0][0] - start_s, end_s - points[-1][0]
    if increase > 0 and values[0] >= 0:
        before_s = min(before_s, sampled_s * values[0] / increase)  # a counter was never below 0
    around_s = sum(gap if gap < 1.1 * usual_s else usual_s / 2 for gap in (before_s, after_s))
    return increase * (sampled_s + around_s) / sampled_s / (end_s - start_s)


def _aggregate(node: Any, vector: Vector) -> Vector:
    if node.modifier is not None and node.modifier.type != ast.AggModifierType.By:
        raise NotImplementedError("without")
    by = set(node.modifier.labels) if node.modifier is not None else set()
    groups: defaultdict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector.items():
        groups[frozenset((name, text) for name, text in labels if name in by)].append(value)
    return {labels: AGGREGATES[str(node.op)](values) for labels, values in groups.items()}


def _binary(op: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if op == "unless":
        assert isinstance(left, dict) and isinstance(right, dict)
        return {labels: value for labels, value in left.items() if labels not in right}
    if isinstance(left, dict):
        pairs = {k: (v, right if isinstance(right, float) else right.get(k)) for k, v in left.items()}
    elif isinstance(right, dict):
        pairs = {k: (left, v) for k, v in right.items()}
    else:
        return ARITHMETIC[op](left, right)
    both = {k: (a, b) for k, (a, b) in pairs.items() if b is not None}
    if op in COMPARISONS:
        kept = left if isinstance(left, dict) else right
        assert isinstance(kept, dict)
        return {k: kept[k] for k, (a, b) in both.items() if COMPARISONS[op](a, b)}
    return {k: ARITHMETIC[op](a, b) for k, (a, b) in both.items()}
