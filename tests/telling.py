"""What tests read in the log."""

from __future__ import annotations

import pytest


def lines(caplog: pytest.LogCaptureFixture, module: str) -> list[str]:
    """What the module, or one whose name begins so, has told; others may tell of their own meanwhile."""
    return [record.getMessage() for record in caplog.records if record.name.startswith(module)]
