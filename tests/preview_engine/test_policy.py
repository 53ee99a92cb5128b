import pytest

from preview_engine.policy import superseded


@pytest.mark.parametrize(
    ("step_index", "steps", "step_s", "gives_way"),
    [(0, 4, 0.05, True), (1, 4, 0.05, False), (3, 4, 0.2, False), (1, 4, 0.5, True), (4, 8, 0.1, False)],
)
def test_superseded_weighs_what_finishing_would_keep_waiting(
    step_index: int, steps: int, step_s: float, gives_way: bool
) -> None:
    assert superseded(step_index, steps, step_s) is gives_way
