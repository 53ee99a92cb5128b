"""Names, labels and the text that several processes make together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.metrics import Metrics, merged
from core.render import TERMINAL, State
from tests.makers import all_metrics

UNITS = ("_seconds", "_total", "_ratio", "_bytes", "_rows")


def test_every_name_says_whose_it_is_and_its_unit() -> None:
    for family in text_string_to_metric_families(all_metrics().text()):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name.startswith("firstlight_") and name.endswith(UNITS), name
        assert family.documentation.endswith("."), name


def test_text_leaves_out_times_of_creation() -> None:
    assert "_created" not in all_metrics().text()


def test_known_labels_stand_at_zero_from_the_start() -> None:
    value = Metrics().registry.get_sample_value
    assert {value("firstlight_renders_total", {"state": state}) for state in TERMINAL} == {0}
    for reason in ("invalid", "blocked", "conflict", "overloaded", "deadline", "doomed"):
        assert value("firstlight_renders_rejected_total", {"reason": reason}) == 0
    for outcome in ("shown", "withheld", "failed"):
        assert value("firstlight_previews_total", {"outcome": outcome}) == 0


def test_superseded_steps_are_wasted_steps() -> None:
    metrics = Metrics()
    metrics.superseded(3)
    metrics.superseded(0)
    metrics.wasted("preview", 2)
    value = metrics.registry.get_sample_value
    assert value("firstlight_previews_superseded_total") == 2
    assert value("firstlight_wasted_steps_total", {"pool": "preview"}) == 5


def test_cache_counts_grow_by_what_is_new() -> None:
    metrics = Metrics()
    metrics.cache(hits=3, misses=1, size_bytes=10)
    metrics.cache(hits=5, misses=4, size_bytes=7, shared=3)
    value = metrics.registry.get_sample_value
    assert value("firstlight_embedding_cache_hits_total", {"tier": "process"}) == 5
    assert value("firstlight_embedding_cache_hits_total", {"tier": "shared"}) == 3
    assert value("firstlight_embedding_cache_misses_total") == 1
    assert value("firstlight_embedding_cache_bytes") == 7


def test_compilations_grow_by_what_is_new() -> None:
    metrics = Metrics()
    metrics.compiled(0, {"preview": 0, "final": 2})
    metrics.compiled(1, {"preview": 0, "final": 5})
    value = metrics.registry.get_sample_value
    assert value("firstlight_recompiles_total") == 1
    assert value("firstlight_uncompiled_steps_total", {"pool": "final"}) == 5
    assert value("firstlight_uncompiled_steps_total", {"pool": "preview"}) == 0


def test_only_an_end_is_counted_as_one() -> None:
    with pytest.raises(ValueError, match="running"):
        Metrics().ended(State.RUNNING)


def test_prediction_of_nothing_is_not_measured() -> None:
    metrics = Metrics()
    metrics.predicted("gpu", 0.0, 1.0)
    assert metrics.registry.get_sample_value("firstlight_prediction_ratio_count", {"kind": "gpu"}) is None


def test_merged_text_is_valid_and_tells_the_processes_apart() -> None:
    text = merged({"one": all_metrics().text(), "two": all_metrics().text(), "web": Metrics().text()})
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert len(re.findall("^# TYPE", text, re.M)) == len(re.findall("^# HELP", text, re.M)) == len(names)
    for family in families:
        assert family.type != "unknown" and {s.labels["worker"] for s in family.samples} <= {"one", "two", "web"}
    (ended,) = (family for family in families if family.name == "firstlight_renders")
    done = {s.labels["worker"]: s.value for s in ended.samples if s.labels["state"] == "done"}
    assert done == {"one": 1, "two": 1, "web": 0}


def test_merged_keeps_values_and_labels_whatever_they_hold() -> None:
    metrics = Metrics()
    metrics.stage('a"b', "c{d}\\ e\n# HELP f", 0.5)
    (sample,) = (
        sample
        for family in text_string_to_metric_families(merged({"w": metrics.text()}))
        for sample in family.samples
        if sample.name == "firstlight_stage_seconds_sum"
    )
    assert (sample.labels, sample.value) == ({"worker": "w", "pool": 'a"b', "stage": "c{d}\\ e\n# HELP f"}, 0.5)


def test_no_source_makes_a_label_of_what_people_type() -> None:
    source = (Path(__file__).resolve().parent.parent.parent / "core" / "metrics.py").read_text()
    for word in ('"owner"', '"prompt"', '"session"', '"style"', '"render"'):
        assert word not in source
