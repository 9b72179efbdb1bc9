"""The manifest of programs."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from firsttouch.errors import FirsttouchError
from firsttouch.host.catalogue import POPULATE_ENV, RANDOM_ENV
from firsttouch.verify import programs
from firsttouch.verify.programs import Program, choose, manifest, missing, ready


def test_there_are_three_examples_and_seven_others_and_each_says_how_it_is_had() -> None:
    rows = manifest()
    ours = [row for row in rows if any("{bundled}" in word or "{examples}" in word for word in row.command)]
    assert len(ours) >= 3 and len(rows) - len(ours) >= 7
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.summary and re.match(r"apt-get install |pip install |ships with ", row.obtain), row.name


def test_every_needed_command_is_named() -> None:
    """The first word of each command is one of ours, or is among what must be found."""
    for row in manifest():
        first = row.command[0]
        assert first in ("{python}", "sh", *row.needs), row.name


def test_names_are_chosen_in_order_and_once() -> None:
    assert [row.name for row in choose(["sort", "make", "sort"])] == ["sort", "make"]
    assert choose(["all"]) == manifest()
    with pytest.raises(FirsttouchError) as caught:
        choose(["sort", "pipelin"])
    assert "pipeline" in caught.value.hint


def test_what_is_missing_is_said_with_what_installs_it(tmp_path: Path) -> None:
    row = Program("x", "a program", "apt-get install x", ["x"], needs=["no-such-x"], modules=["no_such_module"])
    assert missing(row) == "there is no no-such-x, no Python's no_such_module: apt-get install x"
    subject = ready(row, tmp_path)
    assert subject.skipped == missing(row) and not (tmp_path / "x").exists()
    example = msgspec.structs.replace(row, needs=[], modules=[], command=["{python}", "{examples}/x.py"])
    assert "source tree" in missing(example, tmp_path / "absent")


def test_a_program_is_made_ready_in_its_own_folder(tmp_path: Path) -> None:
    row = Program(
        "x", "a program", "ships with firsttouch", ["{python}", "{work}/x.py"], prepare="echo $MARK > x.py",
        before="rm -f {work}/x.pyc", env={"MARK": "mine"}, opts_in=["SOMETHING"],
    )  # fmt: skip
    subject = ready(row, tmp_path)
    assert subject.command == [sys.executable, f"{tmp_path}/x/x.py"] and subject.cwd == f"{tmp_path}/x"
    assert (tmp_path / "x/x.py").read_text() == "mine\n"
    assert subject.before == ["sh", "-c", f"rm -f {tmp_path}/x/x.pyc"] and subject.opts_in == ["SOMETHING"]


def test_files_that_cannot_be_made_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    row = Program("x", "a program", "ships with firsttouch", ["sh"], prepare="echo 'disk is full' >&2; exit 1")
    with pytest.raises(FirsttouchError, match="cannot prepare x: disk is full"):
        ready(row, tmp_path)


def test_the_example_that_opts_in_honours_both_variables() -> None:
    (row,) = choose(["opt-in"])
    assert row.opts_in == [POPULATE_ENV, RANDOM_ENV]
    if missing(row):
        pytest.skip(missing(row))
    path = programs._EXAMPLES / "opt_in.py"
    said = set()
    for variables in ({}, {POPULATE_ENV: "1", RANDOM_ENV: "1"}):
        done = subprocess.run(
            [sys.executable, "-I", str(path)], env=variables, capture_output=True, text=True, check=True
        )
        said.add(done.stdout)
    assert len(said) == 1
