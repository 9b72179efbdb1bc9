"""The model comes to the same outcomes as users run it, with bounds checks, and as plain Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import outcomes
import pytest

from firsttouch._jit import JIT

TESTS = Path(__file__).parents[1]


def in_mode(*arguments, **switches):
    """The outcomes of a process with these environment variables."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, str(TESTS / "mm" / "outcomes.py"), *arguments],
        check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **switches}, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def here(small):
    return json.loads(json.dumps(outcomes.outcomes(small)))


@pytest.mark.skipif(not JIT, reason="this process is without the JIT itself")
def test_as_plain_python():
    assert in_mode("small", FIRSTTOUCH_JIT="0") == here(small=True)


@pytest.mark.slow
@pytest.mark.skipif(not JIT, reason="this process is without the JIT itself")
def test_as_plain_python_at_length():
    assert in_mode(FIRSTTOUCH_JIT="0") == here(small=False)


@pytest.mark.slow
@pytest.mark.skipif(not JIT, reason="this process is without the JIT itself")
def test_with_bounds_checks():
    assert in_mode(FIRSTTOUCH_BOUNDSCHECK="1") == here(small=False)


def test_outcomes_are_worth_comparing():
    """Each policy leaves its mark on the set."""
    found = here(small=True)
    assert len(found) == 10
    assert len({json.dumps(outcome["faults_by_kind"]) for outcome in found.values()}) >= 4
    assert found["crowd +promote-later-10"]["promotions"] > 0
    assert all(sum(outcome["lock_wait_ns"].values()) > 0 for outcome in found.values())
