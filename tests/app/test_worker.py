from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

LOADED = """
import sys, app.worker
print([name for name in ("torch", "diffusers", "transformers", "peft", "compel") if name in sys.modules])
"""


def test_a_worker_brings_no_torch_before_a_role_needs_it() -> None:
    """A finish worker is there in a second or two, and small."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
