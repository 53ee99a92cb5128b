"""Files that claim to be safetensors: each impostor is named with its reason."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from core.errors import InvalidInput
from shared_cache.safetensors_header import check_safetensors, read_header
from tests.shared_cache.makers import write_safetensors


def refusal(path: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        check_safetensors(path)
    assert refused.value.field == path.name
    return refused.value.message


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_])
def test_whole_file_passes(tmp_path: Path, dtype: type) -> None:
    path = tmp_path / "style.safetensors"
    save_file({"a": np.ones((3, 5), dtype), "b": np.ones((), dtype), "empty": np.ones((0, 2), dtype)}, path)
    check_safetensors(path)
    assert set(read_header(path)) == {"a", "b", "empty"}


def test_metadata_passes(tmp_path: Path) -> None:
    check_safetensors(write_safetensors(tmp_path / "s.safetensors"))


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.safetensors") == "none.safetensors: is missing"
    assert "is not a file" in refusal(tmp_path)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (b"1234567", "cut off"),
        (b"a text that somebody renamed to look like a style; " * 2, "it is text"),
        (b"\x93another kind of file, whose first bytes are no text" * 2, "declares"),
        (LFS, "git lfs pull"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "declares a header of 4611686018427387904"),
        ((200_000_000).to_bytes(8, "little") + b"{}", "declares a header of 200000000"),
        ((2).to_bytes(8, "little") + b"{}", "no tensors"),
        ((2).to_bytes(8, "little") + b"[]", "not an object"),
        ((4).to_bytes(8, "little") + b"\xff\xfe{}", "not JSON"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "not JSON"),
        (pickle.dumps({"w": 1}), "pickle"),
    ],
)  # fmt: skip
def test_impostor_is_refused_with_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "style.safetensors"
    path.write_bytes(data)
    assert reason in refusal(path)


def test_pickle_is_never_opened(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (marker,))

    plain, packed = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    plain.write_bytes(pickle.dumps(Trap()))
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Trap()))
    assert "pickle" in refusal(plain)
    assert "zip" in refusal(packed)
    assert not marker.exists()


def test_file_cut_off_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole + b"\0")
    assert "follow its last tensor" in refusal(path)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}


@pytest.mark.parametrize(
    "header",
    [
        {"w": tensor(dtype="F31")}, {"w": tensor(dtype=["F32"])}, {"w": tensor(dtype=None)}, {"w": 7}, {"w": {}},
        {"w": tensor(shape=[2, 3])}, {"w": tensor(shape=[-2, -2])}, {"w": tensor(shape=[2.0, 2])},
        {"w": tensor(shape="22")}, {"w": tensor(shape=[True, 4])}, {"w": tensor(shape=[1 << 62, 1 << 62])},
        {"w": tensor(shape=[1 << 40], data_offsets=[0, 1 << 42])}, {"w": tensor(data_offsets=[0])},
        {"w": tensor(data_offsets=[16, 0])}, {"w": tensor(data_offsets=[0, 1 << 70])},
        {"a": tensor(), "b": tensor()},
        {"a": tensor(shape=[2], data_offsets=[0, 8]), "b": tensor(shape=[1], data_offsets=[12, 16])},
    ],
)  # fmt: skip
def test_header_that_does_not_add_up_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    refusal(write_safetensors(tmp_path / "style.safetensors", header))


def test_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    entry = b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = b"{" + entry + b"," + entry + b"}"
    path = tmp_path / "style.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    assert "not JSON" in refusal(path)
