from pathlib import Path

import pytest

from core.errors import StartupError
from core.settings import Settings, load_settings, redis_url_name

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "settings.md"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_documented(name: str) -> None:
    assert f"`FIRSTLIGHT_{name.upper()}`" in DOCS.read_text()


def test_load_settings_refuses_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_PROT", "1")
    with pytest.raises(StartupError, match="FIRSTLIGHT_PROT"):
        load_settings()


def test_load_settings_refuses_a_value_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_PORT", "99999")
    with pytest.raises(StartupError, match=r"(?i)port"):
        load_settings()


def test_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "firstlight.toml"
    file.write_text("port = 1234\nlane_capacity = 5\n")
    monkeypatch.setenv("FIRSTLIGHT_CONFIG", str(file))
    monkeypatch.setenv("FIRSTLIGHT_PORT", "4321")
    settings = load_settings()
    assert (settings.port, settings.lane_capacity) == (4321, 5)


def test_load_settings_refuses_an_unknown_name_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "firstlight.toml"
    file.write_text("prot = 1\n")
    monkeypatch.setenv("FIRSTLIGHT_CONFIG", str(file))
    with pytest.raises(StartupError, match="prot"):
        load_settings()


def test_redis_url_is_read_without_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:6379")
    assert load_settings().redis_url == "redis://elsewhere:6379"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "FIRSTLIGHT_REDIS_URL"),
        ({"REDIS_URL": "a"}, "REDIS_URL"),
        ({"REDIS_URL": "a", "FIRSTLIGHT_REDIS_URL": "b"}, "FIRSTLIGHT_REDIS_URL"),
        ({"FIRSTLIGHT_CONFIG": "it.toml"}, "redis_url in it.toml"),
        ({"FIRSTLIGHT_CONFIG": "it.toml", "REDIS_URL": "a"}, "REDIS_URL"),
    ],
)
def test_remedy_names_the_place_that_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("it.toml").write_text('redis_url = "c"\n')
    for variable in ("REDIS_URL", "FIRSTLIGHT_REDIS_URL", "FIRSTLIGHT_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    assert redis_url_name() == name
    url = load_settings().redis_url
    assert url == {"redis_url in it.toml": "c"}.get(name, given.get(name))


@pytest.mark.parametrize(
    ("value", "sentence"), [("abc", "port: must be a valid integer"), ("99999", "port: must be less")]
)
def test_wrong_value_is_said_plainly(monkeypatch: pytest.MonkeyPatch, value: str, sentence: str) -> None:
    monkeypatch.setenv("FIRSTLIGHT_PORT", value)
    with pytest.raises(StartupError, match=sentence) as caught:
        load_settings()
    assert "Input" not in caught.value.cause


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PUBLIC_URL", "pictures.example"),
        ("PUBLIC_URL", "//pictures.example"),
        ("PUBLIC_URL", "https://a.example/?x=1"),
        ("PUBLIC_URL", "https://me:secret@a.example"),
        ("ROOT_PATH", "app"),
        ("ROOT_PATH", "/a b"),
        ("ROOT_PATH", "//a.example"),
        ("ROOT_PATH", "/../app"),
        ("S3_PREFIX", "../team/"),
        ("LEASE_S", "inf"),
        ("DRAIN_S", "inf"),
        ("PUBLISH_PATIENCE_S", "nan"),
        ("URL_TTL_S", "1000000000000"),
    ],
)
def test_what_no_process_could_follow_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"FIRSTLIGHT_{name}", value)
    with pytest.raises(StartupError, match=f"{name.lower()}: must be (?!.*pattern)"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("public_url", ""),
        ("public_url", "https://a.example"),
        ("public_url", "http://127.0.0.1:7860/app/"),
        ("public_url", "https://[::1]:8443/a/b"),
        ("root_path", ""),
        ("root_path", "/"),
        ("root_path", "/app"),
        ("root_path", "/a.b/~c/"),
    ],
)
def test_addresses_are_taken_as_people_write_them(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"FIRSTLIGHT_{name.upper()}", value)
    assert getattr(load_settings(), name) == value
