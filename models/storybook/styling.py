"""The drawing styles: the base learns the first, each style adapter one of the others."""

STYLES = ("flat", "ink", "noto")
_WASH = {"flat": 0.0, "ink": 0.55, "noto": 0.0}


def wash(style: str) -> float:
    """Return how far a style pales its background towards white: ink needs light paper."""
    return _WASH[style]
