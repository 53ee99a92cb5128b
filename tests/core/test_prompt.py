import pytest

from core.errors import InvalidInput
from core.prompt import Segment, parse_weights


@pytest.mark.parametrize(
    ("prompt", "segments"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("", [("", 1.0)]),
        ("a (cat:1.3) here", [("a ", 1.0), ("cat", 1.3), (" here", 1.0)]),
        ("((((", [("((((", 1.0)]),
        ("(a:", [("(a:", 1.0)]),
        (")(", [(")(", 1.0)]),
        ("(a]", [("(a]", 1.0)]),
        (r"\(fate\)", [("(fate)", 1.0)]),
        ("text:1.4", [("text:1.4", 1.0)]),
        ("at 10:30)", [("at 10:30)", 1.0)]),
        ("(a:1e9)", [("a", 2.0)]),
        ("(a:-3)", [("a", 0.0)]),
        ("c++ and a-b", [("c++ and a-b", 1.0)]),
    ],
)
def test_parse_weights_reads_what_people_paste(prompt: str, segments: list[tuple[str, float]]) -> None:
    assert parse_weights(prompt) == tuple(Segment(*s) for s in segments)


def test_parse_weights_multiplies_when_nested() -> None:
    weights = {s.text: s.weight for s in parse_weights("((a)) [b] (c (d:0.5))")}
    assert weights["a"] == pytest.approx(1.21)
    assert weights["b"] == pytest.approx(1 / 1.1)
    assert weights["d"] == pytest.approx(0.55)


@pytest.mark.parametrize(
    "prompt", ["(((a:1e300):1e300):0)", "((" * 200 + "a" + ":1e300):-1e300)" * 200, "((a:-1e300):1e300)"]
)
def test_products_of_weights_stay_numbers(prompt: str) -> None:
    assert all(0 <= segment.weight <= 2 for segment in parse_weights(prompt))


@pytest.mark.parametrize("prompt", ["(a:nan)", "(a:inf)", "(a:-Infinity)", "x (a:1e999)"])
def test_parse_weights_refuses_when_not_finite(prompt: str) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        parse_weights(prompt)


@pytest.mark.parametrize("prompt", ["(" * 2000, "(a" * 600 + ")" * 600, "[" * 999 + ":1.5)", "\\" * 2000])
def test_parse_weights_ends_when_deeply_nested(prompt: str) -> None:
    assert parse_weights(prompt)
