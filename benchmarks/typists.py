"""Simulated typists: each types a sentence over its own live socket and notes when it saw a picture of each key."""

from __future__ import annotations

import io
import json
import threading
import time
from dataclasses import dataclass, field

from PIL import Image
from websockets.sync.client import connect

from core.wire import unpack_frame

KEYS_PER_S = 5.0
LAST_ANSWER_S = 60.0


@dataclass(slots=True)
class Typing:
    """Units: seconds; latency_s has one entry a key: until a picture of that text or a newer one was decoded."""

    latency_s: list[float] = field(default_factory=list)
    last_s: float = 0.0
    pictures: int = 0


def type_together(url: str, sentences: list[str]) -> list[Typing]:
    """One thread a typist; all type at KEYS_PER_S from the same moment."""
    results = [Typing() for _ in sentences]
    barrier = threading.Barrier(len(sentences))
    threads = [
        threading.Thread(target=_type, args=(url, sentence, result, barrier, i))
        for i, (sentence, result) in enumerate(zip(sentences, results, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _type(url: str, sentence: str, result: Typing, barrier: threading.Barrier, index: int) -> None:
    sent_s: dict[int, float] = {}
    with connect(url, max_size=2**24) as socket:
        reader = threading.Thread(target=_read, args=(socket, sent_s, len(sentence), result))
        reader.start()
        barrier.wait()
        time.sleep(index / KEYS_PER_S / 8)  # people do not hit keys in step
        started_s = time.monotonic()
        for rev in range(1, len(sentence) + 1):
            time.sleep(max(0.0, started_s + rev / KEYS_PER_S - time.monotonic()))
            sent_s[rev] = time.monotonic()
            socket.send(json.dumps({"rev": rev, "prompt": sentence[:rev], "seed": 7}))
        reader.join()


def _read(socket: object, sent_s: dict[int, float], last: int, result: Typing) -> None:
    answered = 0
    while answered < last:
        message = socket.recv(timeout=LAST_ANSWER_S)  # type: ignore[attr-defined]
        if isinstance(message, str):
            raise RuntimeError(message)
        header, picture = unpack_frame(message)
        Image.open(io.BytesIO(picture)).load()
        now_s = time.monotonic()
        result.pictures += 1
        for rev in range(answered + 1, header["rev"] + 1):
            result.latency_s.append(now_s - sent_s[rev])
        answered = header["rev"]
    result.last_s = result.latency_s[-1]
