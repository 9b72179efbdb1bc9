"""The pool is compiled code: without the JIT only the arena's kernels can be tested."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from firsttouch import _jit

collect_ignore = [] if _jit.JIT else ["harness.py", "test_memory_machine.py", "test_handler.py", "test_install.py"]

Run = Callable[..., str]


@pytest.fixture
def run() -> Run:
    """Run Python code in a process of its own; returns its stdout, and its stderr after that."""

    def run_code(code: str, *arguments: str, status: int = 0, timeout: float = 120, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        lines = done.stderr.splitlines(keepends=True)
        return done.stdout + "".join(line for line in lines if not line.endswith("compiling for this machine, once\n"))

    return run_code
