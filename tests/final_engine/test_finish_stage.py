"""What the last stage measures of a render, that it counts each end once, and waits for the object store."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
import uuid
from pathlib import Path

import httpx
import pytest
import redis

from benchmarks.bundle import Parts
from benchmarks.network import Link
from benchmarks.s3_server import BUCKET, S3Server
from core.render import State
from core.settings import Settings
from sampling.safety import ImageClassifier
from shared_cache.objects import DiskObjects, open_objects
from tests.final_engine.conftest import FinalPath


def test_done_render_is_measured_whole(path: FinalPath) -> None:
    path.ended(path.submit(seed=3, n=2))
    for part in path.stages:
        part.close()
    assert path.measured("renders_total", state="done") == 1
    assert path.measured("request_seconds_count", pool="final") == 1
    assert path.measured("prediction_ratio_count", kind="total") == 1
    assert path.measured("prediction_ratio_count", kind="gpu") == 1
    assert path.measured("doomed_steps_total") == 0
    for stage in ("queue", "encode", "denoise", "decode", "safety", "publish"):
        assert path.measured("stage_seconds_count", pool="final", stage=stage) == 1
    assert (path.measured("pool_busy_seconds_total", pool="finish") or 0) > 0


def test_device_time_is_compared_with_its_prediction_where_no_step_was_shared(path: FinalPath) -> None:
    records = path.ended(path.submit(steps=8), path.submit(steps=8, seed=2))
    for part in path.stages:
        part.close()
    assert max(records[0].batch_sizes) == 2
    assert path.measured("prediction_ratio_count", kind="total") == 2
    assert not path.measured("prediction_ratio_count", kind="gpu")


def test_steps_of_a_render_that_came_too_late_are_doomed(path: FinalPath) -> None:
    record = path.submit(n=2, steps=4)
    path.tick_until(lambda: path.look(record).step >= 1)
    path.client.hset(f"fl:render:{record.id}", "deadline_s", "0.000001")  # what its worker does not know of
    path.ended(record)
    for part in path.stages:
        part.close()
    assert path.measured("doomed_steps_total") == 8


def test_withheld_render_is_counted_as_blocked(client: redis.Redis, parts: Parts, tmp_path: Path) -> None:
    path = FinalPath(client, parts, ImageClassifier(1e-9), tmp_path).start()
    (record,) = path.ended(path.submit())
    path.close()
    assert record.state is State.BLOCKED
    assert (path.measured("renders_total", state="blocked"), path.measured("renders_total", state="done")) == (1, 0)


class FarAway(DiskObjects):
    """A store that takes 200 ms to answer."""

    def put(self, key: str, data: bytes, content_type: str) -> None:
        time.sleep(0.2)
        super().put(key, data, content_type)


def test_pictures_of_one_render_are_stored_at_once(
    client: redis.Redis, parts: Parts, classifier: ImageClassifier, tmp_path: Path
) -> None:
    store = FarAway(tmp_path, b"secret" * 8, None)
    path = FinalPath(client, parts, classifier, tmp_path, objects=store).start()
    path.a_preview(seed=3)
    (record,) = path.ended(path.submit(seed=3, n=4, preview_id="p1"))
    path.close()
    assert record.state is State.DONE and len(record.images) == 4 and record.handoff["similarity"] is not None
    assert 200 <= record.timings_ms["publish"] < 4 * 200


def test_outage_of_s3_delays_a_render_and_loses_nothing(
    client: redis.Redis,
    parts: Parts,
    classifier: ImageClassifier,
    tmp_path: Path,
    s3: S3Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = Link(s3.port)
    prefix = f"{uuid.uuid4().hex}/"
    settings = Settings(
        s3_bucket=BUCKET, s3_endpoint=link.endpoint, s3_public_endpoint=s3.public_endpoint, s3_prefix=prefix
    )
    objects = open_objects(settings, writes=True)
    path = FinalPath(client, parts, classifier, tmp_path, objects=objects).start()
    link.cut()
    record = path.submit(seed=3, n=2)
    path.tick_until(lambda: "pictures cannot be stored" in caplog.text)
    assert path.look(record).state is State.CHECKING
    threading.Timer(1.0, link.mend).start()
    (done,) = path.ended(record)
    path.close()
    assert done.state is State.DONE and (done.attempt, len(done.images)) == (1, 2)
    for image in done.images:
        picture = httpx.get(objects.sign(str(image["key"]), 60, time.time()), trust_env=False).content
        assert hashlib.sha256(picture).hexdigest() == image["sha256"]
    link.close()


def test_full_disk_delays_a_render_and_loses_nothing(
    path: FinalPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        record = path.submit(seed=3, n=2)
        path.tick_until(lambda: "free space there" in caplog.text)
        assert path.look(record).state is State.CHECKING
    (done,) = path.ended(record)
    assert done.state is State.DONE and (done.attempt, len(done.images)) == (1, 2)
    assert caplog.text.count("free space there") == 1
