"""The image classifier on pictures that are certainly safe."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sampling.safety import ImageClassifier


@pytest.fixture(scope="module")
def classifier() -> ImageClassifier:
    return ImageClassifier(0.85)


def test_classifier_allows_plain_pictures(classifier: ImageClassifier) -> None:
    for level in (0, 128, 255):
        assert classifier.allows(np.full((128, 128, 3), level, np.uint8))


def test_classifier_refuses_at_its_threshold() -> None:
    picture = np.full((104, 152, 3), 90, np.uint8)
    score = ImageClassifier(1.0).score(picture)
    assert 0.0 <= score <= 1.0
    assert not ImageClassifier(score).allows(picture)


def test_classifier_gives_one_score_from_many_threads(classifier: ImageClassifier) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8)
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda _: classifier.score(picture), range(8)))
    assert max(scores) - min(scores) < 1e-6
