from __future__ import annotations

from benchmarks.bundle import Parts
from core.cost import Part
from final_engine.calibrate import Bench, calibrate, identity_of, table_of
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


def test_identity_names_model_and_device(parts: Parts) -> None:
    identity = identity_of(parts.model)
    assert (identity.model, identity.dtype) == ("storybook", "float32")
    assert identity.device and identity.threads >= 1
