"""The preview engine on the bundled model and a real server; a test turns the ticks itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import torch

from benchmarks.bundle import Parts
from core.metrics import Metrics
from core.recipe import StyleUse
from core.wire import unpack_frame
from preview_engine.engine import PreviewEngine
from preview_engine.outbox import Finished, Outbox
from sampling.decode import Decoder
from sampling.embedding import Embedding
from sampling.encode_stage import EncodeStage
from sampling.picture import from_bytes
from sampling.safety import ImageClassifier
from shared_cache.lanes import Signal
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.previews import Previews
from tests.makers import a_preview_recipe, a_request

Frame = tuple[dict[str, Any], bytes]


class Harness:
    def __init__(self, client: redis.Redis, parts: Parts, classifier: ImageClassifier) -> None:
        self.mailbox = Mailbox(client, a_preview_recipe().model)
        self.replies, self.previews = Replies(client), Previews(client)
        self.metrics = Metrics()
        self.outbox = Outbox(
            decoder=parts.decoder,
            classifier=classifier,
            previews=self.previews,
            replies=self.replies,
            metrics=self.metrics,
        )
        self.outbox.start()
        self.encode = EncodeStage(parts.encoder, Signal(client, "preview").notify)
        self.loop = parts.preview
        self.engine = PreviewEngine(
            loop=parts.preview,
            encode=self.encode,
            mailbox=self.mailbox,
            replies=self.replies,
            outbox=self.outbox,
            profile=parts.model.profile,
            max_rows=8,
            metrics=self.metrics,
        )

    def measured(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"firstlight_{name}", labels)

    def tick_until_rows(self, count: int) -> None:
        deadline_s = time.monotonic() + 60
        while len(self.loop.rows) < count and time.monotonic() < deadline_s:
            self.engine.tick()
        assert len(self.loop.rows) == count

    def frames(self, count: int) -> list[Frame]:
        """Ticks until so many frames came back."""
        found: list[Frame] = []
        deadline_s = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline_s:
            self.engine.tick()
            frame = self.replies.pop("web", 0.005)
            if frame is not None:
                found.append(unpack_frame(frame))
        return found

    def close(self) -> None:
        for row in self.loop.rows:
            self.loop.leave(row.id)
        self.encode.close()
        self.outbox.close()


@pytest.fixture
def harness(client: redis.Redis, parts: Parts, classifier: ImageClassifier) -> Iterator[Harness]:
    harness = Harness(client, parts, classifier)
    yield harness
    harness.close()


def test_engine_answers_with_a_picture_and_keeps_it(harness: Harness) -> None:
    harness.mailbox.post(a_request(seed=70000))
    ((header, jpeg),) = harness.frames(1)
    assert (header["rev"], header["seed"], header["steps"], header["format"]) == (1, 70000, 4, "jpeg")
    assert from_bytes(jpeg).shape == (128, 128, 3)
    stored = harness.previews.get(header["preview_id"])
    assert stored is not None and stored.owner == "ann" and stored.jpeg == jpeg


def test_engine_measures_what_it_did(harness: Harness) -> None:
    for i in range(3):
        harness.mailbox.post(a_request(session=f"s{i}", seed=i))
    harness.frames(3)
    harness.outbox.close()  # what follows the reply is measured too
    assert harness.measured("previews_total", outcome="shown") == 3
    assert harness.measured("batch_rows_sum", pool="preview") == 12
    assert harness.measured("batch_rows_count", pool="preview") < 12
    assert harness.measured("request_seconds_count", pool="preview") == 3
    for stage in ("queue", "encode", "denoise", "decode", "safety", "encode_jpeg"):
        assert harness.measured("stage_seconds_count", pool="preview", stage=stage) == 3
    counts = [harness.measured("step_seconds_count", pool="preview", bucket="128x128", rows=str(n)) for n in (1, 2, 3)]
    assert sum(count or 0 for count in counts) == harness.measured("batch_rows_count", pool="preview")


def test_engine_counts_the_steps_of_a_session_that_closed_as_wasted(harness: Harness) -> None:
    harness.mailbox.post(a_request())
    harness.tick_until_rows(1)
    while harness.loop.rows[0].step_index < 2:
        harness.engine.tick()
    harness.mailbox.close("s1")
    harness.engine.tick()
    assert harness.measured("wasted_steps_total", pool="preview") == 2


def test_engine_crops_to_the_asked_size(harness: Harness) -> None:
    harness.mailbox.post(a_request(width=100, height=64))
    ((header, jpeg),) = harness.frames(1)
    assert (header["width"], header["height"]) == (100, 64)
    assert from_bytes(jpeg).shape == (64, 100, 3)


def test_engine_answers_only_the_newest_when_typing_is_fast(harness: Harness) -> None:
    for rev in range(1, 6):
        harness.mailbox.post(a_request(rev=rev, prompt="a cat"[:rev]))
    ((header, _),) = harness.frames(1)
    assert header["rev"] == 5
    assert harness.measured("batch_rows_sum", pool="preview") == 4
    assert harness.measured("wasted_steps_total", pool="preview") == 0


def test_engine_finishes_what_is_nearly_done_then_shows_the_newest(harness: Harness) -> None:
    harness.mailbox.post(a_request(rev=1))
    harness.tick_until_rows(1)
    while harness.loop.rows[0].step_index < 3:
        harness.engine.tick()
    harness.engine._step_s = 0.05  # a slow machine would rightly drop it
    harness.mailbox.post(a_request(rev=2, prompt="a dog"))
    assert [header["rev"] for header, _ in harness.frames(2)] == [1, 2]


def test_engine_drops_a_row_that_has_not_begun_when_a_newer_arrives(harness: Harness) -> None:
    harness.mailbox.post(a_request(rev=1))
    deadline_s = time.monotonic() + 60
    for rev in (1, 2):
        harness.mailbox.post(a_request(rev=rev, prompt="a dog"[:rev]))
        while [row.id for row in harness.loop.rows] != [f"s1-{rev}"] and time.monotonic() < deadline_s:
            harness.engine._drain()
            harness.engine._admit()
    ((header, _),) = harness.frames(1)
    assert header["rev"] == 2
    assert harness.measured("wasted_steps_total", pool="preview") == 0
    assert harness.measured("previews_superseded_total") == 1


def test_engine_shows_pictures_while_keys_come_faster_than_prompts_are_encoded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = harness.encode._encoder.encode

    def slow(prompt: str, styles: tuple[StyleUse, ...] = ()) -> object:
        time.sleep(0.05)
        return encode(prompt, styles)

    monkeypatch.setattr(harness.encode._encoder, "encode", slow)
    seen: list[int] = []
    for rev in range(1, 80):
        harness.mailbox.post(a_request(rev=rev, prompt=f"a cat {rev}"))
        harness.engine.tick()
        time.sleep(0.01)
        if (frame := harness.replies.pop("web", 0.005)) is not None:
            seen.append(unpack_frame(frame)[0]["rev"])
        if len(seen) == 3:
            break
    assert seen and seen == sorted(seen)


def test_engine_stops_within_a_step_when_the_session_closes(harness: Harness) -> None:
    harness.mailbox.post(a_request())
    harness.tick_until_rows(1)
    harness.mailbox.close("s1")
    assert harness.engine.tick() is False
    assert harness.loop.rows == []
    assert harness.measured("previews_superseded_total") == 0


def test_engine_batches_sessions_and_each_gets_its_own_picture(harness: Harness) -> None:
    for i in range(4):
        harness.mailbox.post(a_request(session=f"s{i}", seed=i))
    frames = harness.frames(4)
    assert {header["session"] for header, _ in frames} == {"s0", "s1", "s2", "s3"}
    assert len({jpeg for _, jpeg in frames}) == 4


def test_engine_withholds_what_the_classifier_refuses(client: redis.Redis, parts: Parts) -> None:
    harness = Harness(client, parts, ImageClassifier(1e-9))
    try:
        harness.mailbox.post(a_request())
        ((header, payload),) = harness.frames(1)
    finally:
        harness.close()
    assert header["blocked"]["code"] == "withheld" and payload == b""
    assert harness.measured("previews_total", outcome="withheld") == 1
    assert harness.previews.get(header["preview_id"]) is None


def test_engine_fails_one_preview_alone(harness: Harness) -> None:
    harness.mailbox.post(a_request(session="bad", prompt="(a:nan)"))
    harness.mailbox.post(a_request(session="good"))
    by_session = {header["session"]: header for header, _ in harness.frames(2)}
    assert "error" in by_session["bad"] and "error" not in by_session["good"]
    assert harness.measured("previews_total", outcome="failed") == 1


def test_outbox_fails_one_of_those_it_decodes_together_alone(
    client: redis.Redis, parts: Parts, classifier: ImageClassifier
) -> None:
    replies = Replies(client)
    outbox = Outbox(
        decoder=Decoder(parts.model, "preview", max_rows=4),
        classifier=classifier,
        previews=Previews(client),
        replies=replies,
        metrics=Metrics(),
    )
    for session, value in (("a", 0.0), ("bad", float("nan")), ("b", 0.0), ("styled", float("nan"))):
        request = a_request(session, styles=(StyleUse("huge", 2.0),) if session == "styled" else ())
        read = Embedding(torch.zeros(1, 77, 1), torch.zeros(1, 1), token_count=7)
        outbox.put(Finished(request, torch.full((8, 16, 16), value), read, {"queue": 0.0}))
    outbox.start()
    outbox.close()
    frames = [unpack_frame(replies.pop("web", 1.0) or b"") for _ in range(4)]
    by_session = {header["session"]: (header, payload) for header, payload in frames}
    for session in ("bad", "styled"):
        assert by_session[session][0]["error"]["code"] == "non-finite"
    assert "huge:2" in by_session["styled"][0]["error"]["message"]
    assert all("error" not in header and payload for header, payload in (by_session["a"], by_session["b"]))


def test_previews_go_on_after_an_outage_of_the_queue(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    push, failures = harness.replies.push, 1

    def away(reply_to: str, frame: bytes) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise redis.ConnectionError("away")
        push(reply_to, frame)

    monkeypatch.setattr(harness.replies, "push", away)
    harness.mailbox.post(a_request("a"))
    deadline_s = time.monotonic() + 60
    while failures and time.monotonic() < deadline_s:
        harness.engine.tick()
        time.sleep(0.01)
    harness.mailbox.post(a_request("b"))
    ((header, _),) = harness.frames(1)
    assert header["session"] == "b" and "error" not in header


def test_leaving_engine_leaves_the_mail_to_others_and_answers_what_it_has(harness: Harness) -> None:
    harness.mailbox.post(a_request())
    harness.tick_until_rows(1)
    harness.engine.stop_taking()
    harness.mailbox.post(a_request("s2"))
    assert len(harness.frames(1)) == 1
    assert harness.engine.idle()
    assert [request.session for request in harness.mailbox.take(9)] == ["s2"]


def test_leaving_engine_hands_the_newest_of_each_session_back(harness: Harness) -> None:
    harness.mailbox.post(a_request("s1", rev=1))
    harness.mailbox.post(a_request("s2", rev=1))
    harness.tick_until_rows(2)
    harness.mailbox.post(a_request("s1", rev=2))
    harness.engine.tick()
    harness.engine.stop_taking()
    harness.mailbox.post(a_request("s2", rev=3))
    harness.engine.hand_back()
    assert harness.engine.idle() and harness.loop.rows == []
    assert sorted((request.session, request.rev) for request in harness.mailbox.take(9)) == [("s1", 2), ("s2", 3)]
