"""The catalogue: what is listed, and what is left out with its reason."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import StartupError
from core.settings import load_settings
from styles.catalogue import load_catalogue, open_catalogue
from tests.shared_cache.makers import write_safetensors


def an_entry(style_id: str = "ink", **changes: Any) -> dict[str, Any]:
    fields = {
        "id": style_id, "name": "Ink", "file": f"{style_id}.safetensors", "weight": 0.8,
        "trigger_words": ["ink drawing"], "licence": "CC0-1.0", "description": "black lines",
    }  # fmt: skip
    return {**fields, **changes}


def a_model(folder: Path, entries: object) -> Path:
    styles = folder / "styles"
    for name in ("ink", "noto"):
        write_safetensors(styles / f"{name}.safetensors")
    (styles / "styles.json").write_text(json.dumps(entries))
    return folder


def test_styles_are_listed_in_order(tmp_path: Path) -> None:
    catalogue = load_catalogue(a_model(tmp_path, [an_entry("noto"), an_entry("ink")]) / "styles")
    assert [style.id for style in catalogue.all()] == ["noto", "ink"]
    assert catalogue.problems == ()
    assert catalogue.ids() == {"noto", "ink"}
    assert catalogue.paths() == {name: tmp_path / "styles" / f"{name}.safetensors" for name in ("noto", "ink")}
    style = catalogue.get("ink")
    assert style is not None
    assert (style.name, style.weight, style.trigger_words, style.licence) == ("Ink", 0.8, ("ink drawing",), "CC0-1.0")
    assert style.sha256 == hashlib.sha256(style.path.read_bytes()).hexdigest()
    assert catalogue.get("none") is None


def test_model_without_a_listing_has_no_styles(tmp_path: Path) -> None:
    catalogue = load_catalogue(tmp_path / "styles")
    assert (catalogue.all(), catalogue.problems) == ((), ())


def test_digest_follows_the_content_when_a_file_is_replaced_under_its_name(tmp_path: Path) -> None:
    a_model(tmp_path, [an_entry()])
    before = load_catalogue(tmp_path / "styles").all()[0]
    write_safetensors(tmp_path / "styles" / "ink.safetensors", data=b"\1" * 16)
    after = load_catalogue(tmp_path / "styles").all()[0]
    assert before.path == after.path and before.sha256 != after.sha256


BAD_FILES = {
    "text": (b"a text of one hundred bytes " * 4, "not safetensors"),
    "cut": (b"\x60\0\0\0\0\0\0\0" + b'{"w":', "cut off"),
    "huge": ((1 << 60).to_bytes(8, "little") + bytes(100), "declares a header"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n", "git lfs pull"),
    "archive": (b"PK\x03\x04" + bytes(100), "zip"),
}


def test_bad_files_are_reported_and_the_others_still_listed(tmp_path: Path) -> None:
    entries = [an_entry(name) for name in ("ink", *BAD_FILES, "missing", "noto")]
    a_model(tmp_path, entries)
    for name, (data, _) in BAD_FILES.items():
        (tmp_path / "styles" / f"{name}.safetensors").write_bytes(data)
    catalogue = load_catalogue(tmp_path / "styles")
    assert [style.id for style in catalogue.all()] == ["ink", "noto"]
    reasons = {problem.id: problem for problem in catalogue.problems}
    assert list(reasons) == [*BAD_FILES, "missing"]
    for name, (_, reason) in BAD_FILES.items():
        assert reasons[name].file == f"{name}.safetensors"
        assert reason in reasons[name].reason
    assert "is missing" in reasons["missing"].reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (an_entry("ink"), "twice"),
        (an_entry("In k"), "small letters"),
        (an_entry("../x"), "small letters"),
        (an_entry("other", file="../ink.safetensors"), "styles folder"),
        (an_entry("other", file="/etc/passwd"), "styles folder"),
        (an_entry("other", file="a\0b"), "NUL"),
        (an_entry("other", file=""), "must be a text"),
        (an_entry("other", file="styles.json"), "not safetensors"),
        (an_entry("other", file="ink.safetensors", weight="1"), "weight"),
        (an_entry("other", file="ink.safetensors", weight=float("nan")), "weight"),
        (an_entry("other", file="ink.safetensors", weight=99), "weight"),
        (an_entry("other", file="ink.safetensors", weight=-1), "weight"),
        *(
            (an_entry("other", file="ink.safetensors", **{field: "a\ud800"}), field)
            for field in ("name", "licence", "description")
        ),
        (an_entry("other", file="ink.safetensors", name="a\0b"), "NUL"),
        (an_entry("other", file="\ud800.safetensors"), "surrogate"),
        (an_entry("other", file="ink.safetensors", trigger_words=["ok", "\udfff"]), "trigger_words"),
        (an_entry("other", file="ink.safetensors", trigger_words="ink"), "trigger_words"),
        ({"file": "ink.safetensors"}, "id"),
        (7, "not an object"),
    ],
)
def test_bad_entry_is_reported_and_left_out(tmp_path: Path, entry: object, reason: str) -> None:
    catalogue = load_catalogue(a_model(tmp_path, [an_entry("ink"), entry, an_entry("noto")]) / "styles")
    assert [style.id for style in catalogue.all()] == ["ink", "noto"]
    (problem,) = catalogue.problems
    assert reason in problem.reason


def test_link_that_leads_outside_is_left_out(tmp_path: Path) -> None:
    a_model(tmp_path, [an_entry("linked"), an_entry("ink")])
    outside = write_safetensors(tmp_path / "outside.safetensors")
    (tmp_path / "styles" / "linked.safetensors").symlink_to(outside)
    assert [style.id for style in load_catalogue(tmp_path / "styles").all()] == ["ink", "noto"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1, column 1: Expecting value"),
        ('[\n  {"id": "ink",\n   "file": "ink.safetensors"\n', "line 4, column 1: Expecting"),
        ("[" * 100_000, "nested too deep"),
        ('{"styles": []}', "is not a list"),
        ("[\n\xff]", "line 2 is not UTF-8"),
        (f"[{'9' * 5000}]", "cannot be read"),
    ],
)
def test_broken_listing_is_one_problem_and_hides_no_file(tmp_path: Path, text: str, reason: str) -> None:
    a_model(tmp_path, [])
    (tmp_path / "styles" / "styles.json").write_text(text, encoding="latin-1")
    catalogue = load_catalogue(tmp_path / "styles")
    assert [style.id for style in catalogue.all()] == ["ink", "noto"]
    (problem,) = catalogue.problems
    assert problem.file == "styles.json" and reason in problem.reason


@pytest.mark.parametrize(
    ("key", "hint"),
    [("license", 'did you mean "licence"?'), ("Trigger_Word", '"trigger_words"'), ("zzz", "known are id, file,"),
     ("\ud800", "ud800"), ("wei\0ght" * 50, "known are")],
)  # fmt: skip
def test_field_that_nobody_reads_is_told_with_the_nearest_one(tmp_path: Path, key: str, hint: str) -> None:
    a_model(tmp_path, [an_entry("ink", **{key: "x"}), an_entry("noto")])
    catalogue = load_catalogue(tmp_path / "styles")
    assert [style.id for style in catalogue.all()] == ["ink", "noto"] and not catalogue.problems
    (warning,) = catalogue.warnings
    assert (warning.id, warning.file) == ("ink", "styles.json") and hint in warning.reason
    assert len(warning.reason.encode()) < 200


def test_reason_names_the_file_once(tmp_path: Path) -> None:
    folder = a_model(tmp_path, [an_entry("trunc")]) / "styles"
    (folder / "trunc.safetensors").write_bytes(b"short")
    (problem,) = [one for one in load_catalogue(folder).problems if one.id == "trunc"]
    assert (problem.file, problem.reason) == ("trunc.safetensors", "is cut off: 5 bytes")


def test_files_without_an_entry_are_styles_named_after_themselves(tmp_path: Path) -> None:
    for name in ("Oil on Canvas v1.2", "ink", "mine/adapter_model", "mine/other"):
        write_safetensors(tmp_path / f"{name}.safetensors")
    (tmp_path / "styles.json").write_text(json.dumps([an_entry("drawing", file="ink.safetensors")]))
    catalogue = load_catalogue(tmp_path)
    assert catalogue.problems == ()
    assert [(style.id, style.name, style.weight) for style in catalogue.all()] == [
        ("drawing", "Ink", 0.8),
        ("oil-on-canvas-v1-2", "Oil on Canvas v1.2", 1.0),
        ("mine", "mine", 1.0),
    ]


def test_second_folder_comes_after_the_first_and_cannot_take_its_ids(tmp_path: Path) -> None:
    for folder, name in (("model", "ink"), ("own", "ink"), ("own", "felt")):
        write_safetensors(tmp_path / folder / f"{name}.safetensors")
    catalogue = load_catalogue(tmp_path / "model", tmp_path / "own")
    assert [style.path for style in catalogue.all()] == [
        tmp_path / "model" / "ink.safetensors",
        tmp_path / "own" / "felt.safetensors",
    ]
    assert {problem.file: problem.reason for problem in catalogue.problems} == {
        "ink.safetensors": "id: ink stands twice, also for ink.safetensors; give it another in styles.json",
    }


def test_any_file_name_gives_an_id_that_can_be_asked_for(tmp_path: Path) -> None:
    for name in ("Café Noël", "Straße", "UPPER"):
        write_safetensors(tmp_path / f"{name}.safetensors")
    write_safetensors(tmp_path / "画.SAFETENSORS")
    catalogue = load_catalogue(tmp_path)
    found = {style.name: style.id for style in catalogue.all()}
    assert (found.pop("画")[:6], catalogue.problems) == ("style-", ())
    assert found == {"Café Noël": "cafe-noel", "Straße": "strasse", "UPPER": "upper"}


def test_pickles_are_told_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"")
    (tmp_path / "Photo.CKPT").write_bytes(b"")
    assert [problem.file for problem in load_catalogue(tmp_path).problems] == ["Photo.CKPT", "old.pt"]


def test_styles_of_another_model_are_left_out_and_the_models_own_stand(tmp_path: Path, bundle: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    write_safetensors(tmp_path / "foreign.safetensors", {"other.weight": tensor})
    catalogue = open_catalogue(load_settings(model=str(bundle), styles=tmp_path))
    assert catalogue.ids() == {"chalk", "ink", "neon", "noto", "sketch", "watercolour"}
    assert catalogue.reasons() == {
        "foreign": "0 of 1 keys matched; this model is of the architecture of SDXL, text 256 wide"
    }


def test_folder_of_styles_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(StartupError, match=r"FIRSTLIGHT_STYLES names .*, which is not a folder"):
        open_catalogue(load_settings(model=str(bundle), styles=tmp_path / "none"))
