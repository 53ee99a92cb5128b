"""The dashboard and the alert rules: they ask for what is exported, and each alert fires when it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import shared_metrics
from core.metrics import merged, text_of
from shared_cache.metrics import Depth, Look
from tests.conftest import ROOT
from tests.deploy.promql import Labels, Series, evaluate, grouping, parse_series, selectors
from tests.makers import all_metrics

FOLDER = ROOT / "deploy" / "monitoring"
CASES = Path(__file__).parent / "alerts_test.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TESTS: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    return float(text[:-1]) * SECONDS[text[-1]]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Labels of every sample that /metrics can hold."""
    look = Look({}, [Depth("final", "standard:128x128", 1, 1, 2.0)], 1)
    text = merged({"worker": all_metrics().text()}) + text_of(shared_metrics(look, []))
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def check(expression: str, exported: dict[str, set[str]]) -> None:
    found = selectors(expression)
    assert found
    for name, labels in found:
        assert name in exported, name
        assert labels <= exported[name] | SCRAPED, (name, labels)


def queries() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of each query, with Grafana's own variables filled in."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m"), target["legendFormat"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_rule_asks_for_what_is_exported_and_is_documented(rule: dict[str, Any], exported: dict[str, set[str]]) -> None:
    check(rule["expr"], exported)
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert used <= grouping(rule["expr"])
    assert f"| `{rule['alert']}` |" in (ROOT / "docs" / "metrics.md").read_text()
    assert seconds(rule["for"]) > 0 and rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize(("title", "expression", "legend"), queries())
def test_panel_asks_for_what_is_exported(
    title: str, expression: str, legend: str, exported: dict[str, set[str]]
) -> None:
    check(expression, exported)
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    (first, *_) = selectors(expression)
    assert shown <= (grouping(expression) or exported[first[0]])


def test_dashboard_shows_each_exported_family(exported: dict[str, set[str]]) -> None:
    asked = {name for _, expression, _ in queries() for name, _ in selectors(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert families - shown == {"firstlight_calibrated_step_seconds"}


def test_dashboard_can_be_imported_and_no_panel_covers_another() -> None:
    assert DASHBOARD["schemaVersion"] >= 38 and DASHBOARD["title"] and DASHBOARD["uid"]
    assert len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS)
    covered: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & covered and at["x"] + at["w"] <= 24, panel["title"]
        covered |= cells
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"] and all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    (source,) = DASHBOARD["templating"]["list"]
    assert source["type"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {f"${{{source['name']}}}"}


def firing(rule: dict[str, Any], series: list[Series], at_s: float, every_s: float) -> set[Labels]:
    """What the rule raises at at_s, evaluated every every_s from 0 on."""
    since: dict[Labels, float] = {}
    for step in range(int(at_s // every_s) + 1):
        now_s = step * every_s
        true = evaluate(rule["expr"], series, now_s)
        since = {labels: since.get(labels, now_s) for labels in true}
    return {
        labels | frozenset(rule["labels"].items())
        for labels, began_s in since.items()
        if at_s // every_s * every_s - began_s >= seconds(rule["for"])
    }


def annotated(rule: dict[str, Any], labels: dict[str, str]) -> dict[str, str]:
    def fill(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)

    return {name: fill(text) for name, text in rule["annotations"].items()}


def cases() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for test in TESTS:
        for expected in test["alert_rule_test"]:
            yield test, expected


@pytest.mark.parametrize(
    ("test", "expected"), cases(), ids=lambda v: str(v.get("alertname", "")) + v.get("eval_time", "")
)
def test_alert_fires_when_it_should_and_only_then(test: dict[str, Any], expected: dict[str, Any]) -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == expected["alertname"])
    series = [parse_series(s["series"], s["values"], seconds(test["interval"])) for s in test["input_series"]]
    raised = firing(rule, series, seconds(expected["eval_time"]), 60.0)
    assert raised == {frozenset(alert["exp_labels"].items()) for alert in expected["exp_alerts"]}
    for alert in expected["exp_alerts"]:
        assert annotated(rule, alert["exp_labels"]) == alert["exp_annotations"]


def test_every_alert_is_shown_to_fire_and_to_stay_silent() -> None:
    outcomes = {(expected["alertname"], bool(expected["exp_alerts"])) for _, expected in cases()}
    assert outcomes == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus' own tool is not installed")
def test_promtool_agrees() -> None:
    done = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
