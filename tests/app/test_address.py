"""The word that a server leaves in its data folder, also when a second one comes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from app.address import SERVER_FILE, announced, announced_url
from core.errors import StartupError


def test_second_server_of_a_folder_is_refused_with_the_first_ones_address(tmp_path: Path) -> None:
    with announced(tmp_path, "http://127.0.0.1:7860", alone=True):
        with pytest.raises(StartupError, match=r"runs already, at http://127\.0\.0\.1:7860"):  # noqa: SIM117
            with announced(tmp_path, "http://127.0.0.1:7861", alone=True):
                pass
        assert announced_url(tmp_path) == "http://127.0.0.1:7860"
    assert announced_url(tmp_path) is None
    with announced(tmp_path, "http://127.0.0.1:7861", alone=True):
        assert announced_url(tmp_path) == "http://127.0.0.1:7861"


def test_second_server_over_a_queue_of_its_own_leaves_the_first_ones_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with announced(tmp_path, "http://127.0.0.1:7860", alone=False):
        with announced(tmp_path, "http://127.0.0.1:7861", alone=False):
            assert announced_url(tmp_path) == "http://127.0.0.1:7860"
        assert announced_url(tmp_path) == "http://127.0.0.1:7860"
    assert "was there first, at http://127.0.0.1:7860" in caplog.text


def test_word_of_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    (tmp_path / SERVER_FILE).write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1}))
    with announced(tmp_path, "http://127.0.0.1:7860", alone=True):
        assert announced_url(tmp_path) == "http://127.0.0.1:7860"


@pytest.mark.parametrize("text", ["", "[]", '{"url": 7}', "\0"])
def test_word_that_makes_no_sense_is_no_address(tmp_path: Path, text: str) -> None:
    (tmp_path / SERVER_FILE).write_text(text)
    assert announced_url(tmp_path) is None
