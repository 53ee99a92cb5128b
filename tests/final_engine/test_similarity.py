import numpy as np
import pytest

from final_engine.similarity import similarity


def noise(seed: int, height: int = 128, width: int = 128) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    return small.repeat(16, 0).repeat(16, 1)


def test_similarity_is_one_for_the_same_and_low_for_others() -> None:
    assert similarity(noise(1), noise(1)) == pytest.approx(1.0)
    assert similarity(noise(1), noise(2)) < 0.5


def test_similarity_compares_across_sizes() -> None:
    assert similarity(noise(1), noise(1).repeat(2, 0).repeat(2, 1)) > 0.95
