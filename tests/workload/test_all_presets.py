"""Every policy preset runs on every generator, to the end of every thread."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_generators import SMALL

from firsttouch import policy


@pytest.mark.slow
def test_every_preset_runs_on_every_generator():
    """With the JIT off: compiling the parts of all kernels takes longer than these small runs."""
    script = Path(__file__).with_name("all_presets.py")
    environment = {**os.environ, "FIRSTTOUCH_JIT": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], check=False, env=environment, capture_output=True, text=True, timeout=900
    )
    assert (done.stdout, done.stderr) == (f"{len(policy.presets()) * (len(SMALL) + 1)} runs\n", "")
