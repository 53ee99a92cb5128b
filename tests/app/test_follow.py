"""Server-sent events: order, ids, resuming, the end; and the owner's feed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from core.render import State
from tests.app.conftest import Web

PATH = "/api/v1/renders"


def parse(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    event_id = ""
    for line in lines:
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            yield event_id, json.loads(line[6:])


def follow(client: httpx.Client, path: str, **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """All events until the server ends the stream."""
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(parse(answer.iter_lines()))


def start(web: Web, client: httpx.Client) -> tuple[str, int]:
    render_id = client.post(PATH, json={"prompt": "a cat", "steps": 3}).json()["id"]
    record = web.context.renders.claim(render_id, 3)
    assert record is not None
    return render_id, record.attempt


def run_through(web: Web, render_id: str, attempt: int) -> None:
    for step in (1, 2, 3):
        assert web.context.renders.progress(render_id, attempt, step, 1)
        time.sleep(0.05)
    web.context.renders.finish(render_id, attempt, State.FAILED, error={"code": "x", "message": "y"})


def test_events_come_in_order_and_the_stream_ends_with_the_render(web: Web, client: httpx.Client) -> None:
    render_id, attempt = start(web, client)
    thread = threading.Thread(target=run_through, args=(web, render_id, attempt))
    thread.start()
    started_s = time.monotonic()
    events = follow(client, f"{PATH}/{render_id}/events")
    thread.join()
    assert time.monotonic() - started_s < 3
    assert [fields["state"] for _, fields in events] == ["queued", "running", "running", "running", "running", "failed"]
    assert [fields["step"] for _, fields in events][2:5] == [1, 2, 3]
    assert len({event_id for event_id, _ in events}) == len(events)


def test_last_event_id_resumes_without_loss_or_repetition(web: Web, client: httpx.Client) -> None:
    render_id, attempt = start(web, client)
    run_through(web, render_id, attempt)
    events = follow(client, f"{PATH}/{render_id}/events")
    for index in range(len(events)):
        rest = follow(client, f"{PATH}/{render_id}/events", **{"Last-Event-ID": events[index][0]})
        assert rest == events[index + 1 :]


def test_stream_of_more_events_than_one_look_reads_is_whole(
    web: Web, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_id, attempt = start(web, client)
    run_through(web, render_id, attempt)
    for module in ("shared_cache.events", "app.follow"):
        monkeypatch.setattr(f"{module}.READ_LIMIT", 2)
    assert [fields["state"] for _, fields in follow(client, f"{PATH}/{render_id}/events")][-1] == "failed"


@pytest.mark.parametrize("given", ["x", "1-x", "-1", "$", "9" * 20, "1-" + "9" * 20, "9" * 40])
def test_odd_last_event_id_is_refused(web: Web, client: httpx.Client, given: str) -> None:
    render_id, _ = start(web, client)
    for path in (f"{PATH}/{render_id}/events", "/api/v1/events"):
        answer = client.get(path, headers={"Last-Event-ID": given})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "Last-Event-ID")


def test_unknown_render_has_no_events(client: httpx.Client) -> None:
    assert client.get(f"{PATH}/nope/events").status_code == 404


def test_feed_tells_of_all_of_an_owners_renders_and_no_others(web: Web) -> None:
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    opened = threading.Event()
    with web.client("feeder") as client, web.client("stranger") as stranger:

        def listen() -> None:
            try:
                with client.stream("GET", "/api/v1/events") as answer:
                    opened.set()
                    for _, fields in parse(answer.iter_lines()):
                        heard.put(fields)
                        if fields["state"] == "cancelled":
                            return
            except httpx.HTTPError as error:
                heard.put({"broken": str(error)})

        thread = threading.Thread(target=listen)
        thread.start()
        assert opened.wait(5)
        stranger.post(PATH, json={"prompt": "not for you"})
        ids = [client.post(PATH, json={"prompt": "a cat"}).json()["id"] for _ in range(2)]
        client.delete(f"{PATH}/{ids[1]}")
        thread.join(5)
        seen = [heard.get_nowait() for _ in range(heard.qsize())]
    assert [(fields["id"], fields["state"]) for fields in seen] == [
        (ids[0], "queued"),
        (ids[1], "queued"),
        (ids[1], "cancelled"),
    ]


def test_feed_that_broke_before_its_first_event_goes_on_from_where_it_began(web: Web) -> None:
    with web.client("feeder") as client:
        earlier = client.post(PATH, json={"prompt": "a cat"}).json()["id"]
        with client.stream("GET", "/api/v1/events") as answer:
            began = next(line for line in answer.iter_lines() if line.startswith("id: "))[4:]
        missed = client.post(PATH, json={"prompt": "a cat"}).json()["id"]
        with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": began}) as answer:
            _, fields = next(parse(answer.iter_lines()))
    assert (fields["id"], fields["state"]) == (missed, "queued") and missed != earlier


def test_feed_of_somebody_new_goes_on_from_its_very_beginning(web: Web) -> None:
    with web.client("newcomer") as client:
        with client.stream("GET", "/api/v1/events") as answer:
            began = next(line for line in answer.iter_lines() if line.startswith("id: "))[4:]
        render_id = client.post(PATH, json={"prompt": "a cat"}).json()["id"]
        with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": began}) as answer:
            _, fields = next(parse(answer.iter_lines()))
    assert (fields["id"], fields["state"]) == (render_id, "queued")
