"""The house: what a newcomer follows exists, and starting is light."""

import json
import os
import subprocess
import sys
import time
import tomllib
from importlib import import_module, resources
from pathlib import Path

import pytest

from firsttouch import _code_folder, _jit

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ("pipeline", "compile", "sqlite")


@pytest.mark.parametrize(
    "name",
    [
        "cli.whatif:whatif",
        "record.recorder:record",
        "trace.store:Trace",
        "workload.from_trace:from_trace",
        "mm.simulate:simulate",
        "mm.fault:touch",
        "mm.buddy:Buddy",
        "whatif.evaluate:whatif",
        "report.tables:whatif_plain",
    ],
)
def test_the_newcomers_path_exists(name: str) -> None:
    module, _, member = name.partition(":")
    found = getattr(import_module(f"firsttouch.{module}"), member)
    assert found.__doc__


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {"numba", "duckdb", "plotly", "scipy", "numpy", "rich"}


def test_importing_firsttouch_is_light() -> None:
    assert not modules_after("import firsttouch") & HEAVY


def test_help_is_light() -> None:
    statement = "import sys; sys.argv = ['firsttouch', '--help']\nfrom firsttouch.cli import main\n"
    assert (
        not modules_after(statement + "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code") & HEAVY
    )


@pytest.mark.parametrize("first", ["", "import firsttouch.record.recorder, firsttouch.whatif.advice"])
def test_every_public_name_can_be_had_whatever_was_imported_before(first: str) -> None:
    script = f"""
{first}
import firsttouch as ft
for _ in range(2):
    for name in ft.__all__:
        assert callable(getattr(ft, name)), name
for call in (ft.record, ft.whatif):
    try:
        call("no such trace, no such program", "x", nonsense=1)
    except TypeError as error:
        assert "nonsense" in str(error)
try:
    ft.nothing
except AttributeError:
    print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_the_bundled_traces_are_whole_small_and_name_nothing_odd() -> None:
    from firsttouch.trace import Trace
    from firsttouch.trace.check import check

    folder = resources.files("firsttouch") / "bundled"
    total = 0
    for name in BUNDLED:
        with resources.as_file(folder / f"{name}.ftt") as path, Trace(path) as trace:
            total += path.stat().st_size
            assert all(each.ok for each in check(trace)), name
            assert set(trace.meta["host"]) == {"kernel", "cpu", "nr_cpus", "memory_bytes", "page_bytes", "virtual"}
            assert trace.meta["level"] == "full" and trace.meta["command"][0].startswith("/tmp/ft/")
            assert trace.sql("SELECT count(*) FROM map WHERE name LIKE '/home/%' OR name LIKE '/root/%'") == [(0,)]
    assert total < 5_000_000


def test_the_demo_runs_the_example() -> None:
    bundled = resources.files("firsttouch") / "bundled" / "pipeline.py"
    assert bundled.read_text() == (ROOT / "examples" / "pipeline.py").read_text()


def test_examples_say_the_same_on_every_run() -> None:
    for name in ("pipeline.py", "sqlite_load.py"):
        runs = {
            subprocess.run(
                [sys.executable, ROOT / "examples" / name], capture_output=True, text=True, check=True
            ).stdout
            for _ in range(2)
        }
        assert len(runs) == 1 and runs.pop().count("\n") == 1


def test_the_readme_has_the_two_commands_and_only_verbs_that_exist() -> None:
    from firsttouch.cli import app

    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme and "make test" in readme
    rows = [line.split("`")[1].split()[1] for line in readme.splitlines() if line.startswith("| `firsttouch ")]
    verbs = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert set(rows) == verbs


def test_the_makefile_has_the_newcomers_two_targets_first() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    targets = [line.split(":")[0] for line in lines if line[:1].isalpha() and ":" in line and "=" not in line]
    assert targets[:2] == ["demo", "test"]


def test_the_version_is_said_once() -> None:
    from firsttouch import __version__

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_rooms_left_out_of_the_digest_hold_no_kernels():
    root = Path(_jit.__file__).parent
    for room in _jit._NO_KERNELS:
        for path in (root / room).rglob("*.py"):
            text = path.read_text()
            assert "import kernel" not in text and "state_kernel" not in text and "njit" not in text, path


def test_only_old_caches_are_pruned(tmp_path):
    for i in range(8):
        (tmp_path / str(i)).mkdir()
        day = 0 if i < 2 else -10 * 86400 + i  # the first two are used, the others are old
        os.utime(tmp_path / str(i), (time.time() + day, time.time() + day))
    _code_folder._prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "6", "7"]
