from __future__ import annotations

from dataclasses import replace

from benchmarks.bundle import Parts
from core.cost import Part
from core.profile import Bucket
from final_engine.calibrate import Bench, calibrate, first_samples, identity_of, table_of
from sampling.safety import ImageClassifier


def test_every_part_bucket_and_count_is_measured(parts: Parts, classifier: ImageClassifier) -> None:
    bench = Bench(parts.model, parts.encoder, parts.final, parts.decoder, classifier)
    table = table_of(calibrate(bench, max_rows=2, rounds=1))
    buckets = {str(bucket) for bucket in parts.model.profile.final.buckets}
    assert set(table.seconds) == set(Part)
    assert set(table.seconds[Part.STEP]) == set(table.seconds[Part.DECODE]) == buckets
    assert all(set(counts) == {1, 2} for counts in table.seconds[Part.STEP].values())
    assert all(set(counts) == {1, 2, 3, 4} for counts in table.seconds[Part.DECODE].values())
    assert all(s > 0 for shapes in table.seconds.values() for counts in shapes.values() for s in counts.values())
    assert parts.final.rows == []


def test_first_measure_takes_one_bucket_of_each_area(parts: Parts, classifier: ImageClassifier) -> None:
    profile = parts.model.profile
    large, small = profile.final.buckets, (Bucket(64, 64), Bucket(72, 56))
    model = replace(parts.model, profile=replace(profile, final=replace(profile.final, buckets=(*small, *large))))
    bench = Bench(model, parts.encoder, parts.final, parts.decoder, classifier)
    steps = table_of(first_samples(bench, counts=(1, 2))).seconds[Part.STEP]
    assert set(steps) == {str(bucket) for bucket in (*large, *small)}
    for alike in (large, small):
        assert all(steps[str(bucket)] == steps[str(alike[0])] for bucket in alike)
    assert steps[str(large[0])] != steps[str(small[0])]


def test_identity_names_model_and_device(parts: Parts) -> None:
    identity = identity_of(parts.model)
    assert (identity.model, identity.dtype) == ("storybook", "float32")
    assert identity.device and identity.threads >= 1
