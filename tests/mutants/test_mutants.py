"""Mutation check: every mutant of mutants.toml is caught by the tests it names. Run with `make test-slow`."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SOURCE = REPO / "src" / "firsttouch"
MUTANTS = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]

FAILED = 1  # pytest's exit code for failed tests; a mutant that breaks collection would give another


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, links followed, that can be changed and is imported before the installed one."""
    shutil.copytree(SOURCE, tmp_path / "firsttouch", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "firsttouch"


def run(copy, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FIRSTTOUCH_JIT": "0",
        "FIRSTTOUCH_FIRST_FAILURE": "1",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, cwd=REPO, env=environment, capture_output=True, text=True, timeout=280)


def run_tests(copy, tests):
    options = ("-x", "-q", "-m", "not slow and not kernel and not root", "-p", "no:cacheprovider", "--timeout=60")
    return run(copy, "-m", "pytest", *options, *(f"tests/{test}" for test in tests))


@pytest.mark.slow
def test_unmutated_copy_passes(copy):
    where = run(copy, "-c", "import firsttouch.mm.buddy; print(firsttouch.__file__)")
    assert Path(where.stdout.strip()).parent == copy, where.stderr
    result = run_tests(copy, sorted({test for mutant in MUTANTS for test in mutant["tests"]}))
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["what"].replace(" ", "-"))
def test_mutant_is_caught(mutant, copy):
    path = copy / mutant["file"]
    text = path.read_text()
    assert text.count(mutant["old"]) == 1, "stale: `old` must occur exactly once"
    path.write_text(text.replace(mutant["old"], mutant["new"]))
    result = run_tests(copy, mutant["tests"])
    assert result.returncode == FAILED, f"survived: {mutant['what']}\n{result.stdout}{result.stderr}"


def test_every_mutant_is_current():
    """The cheap half of the above, so that an edit that outdates a mutant is noticed at once."""
    stale = [
        m["what"] for m in MUTANTS if (SOURCE / m["file"]).read_text().count(m["old"]) != 1 or m["old"] == m["new"]
    ]
    assert stale == []
