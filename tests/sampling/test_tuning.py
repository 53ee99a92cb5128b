"""Options of a profile: what is unknown, of another type or not with the others is named."""

from __future__ import annotations

from typing import Any

import pytest

from sampling.tuning import Compile, Tuning


def test_reads_what_a_profile_says() -> None:
    given = {"dtype": "bfloat16", "weights": "int8", "compile": "whole", "vae_tiling": True, "channels_last": False}
    tuning = Tuning.parse(given)
    assert (tuning.dtype, tuning.weights, tuning.compile) == ("bfloat16", "int8", Compile.WHOLE)
    assert tuning.vae_tiling and tuning.quantised and tuning.compiles and not tuning.channels_last


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weight": "int8"}, "knows no weight; it knows attention_slicing"),
        ({"dtype": "int8"}, "options.dtype is 'int8'"),
        ({"weights": "int4"}, "options.weights is 'int4', it may be float32"),
        ({"compile": True}, "options.compile is True, it may be off, regional, whole"),
        ({"vae_tiling": "yes"}, "options.vae_tiling is 'yes', it may be true or false"),
        ({"offload": True, "compile": "regional"}, "leave one out"),
        ({"offload": True, "weights": "fp8"}, "leave one out"),
        ({"cuda_graphs": True, "compile": "off"}, "compile is off"),
    ],
)
def test_names_what_is_wrong(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Tuning.parse(given)


def test_label_tells_what_times_depend_on() -> None:
    assert Tuning().label("float32") == Tuning(compile=Compile.OFF).label("float32") == "float32"
    fast = Tuning(weights="fp8", compile=Compile.REGIONAL, cuda_graphs=True)
    assert fast.label("bfloat16") == "bfloat16, fp8 weights, compiled regional, cuda_graphs"
