"""`firsttouch verify`: what it refuses, what a dry run leaves alone, and the shape of its JSON."""

import json
import os
from pathlib import Path

import pytest
from runner import assert_refused, run

from firsttouch.record.doctor import examine

THP = Path("/sys/kernel/mm/transparent_hugepage")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "it needs traces, or -- COMMAND, or --programs"),
        (("--",), "it needs traces, or -- COMMAND, or --programs"),
        (("x.ftt", "--", "true"), "it needs traces, or -- COMMAND, or --programs"),
        (("--programs", "sort", "--", "true"), "it needs traces, or -- COMMAND, or --programs"),
        (("--knobs", "thpp", "--", "true"), "there is no knob 'thpp'"),
        (("--knobs", ",", "--", "true"), "no knob is named"),
        (("--knobs", "mthp-17k", "--", "true"), "there is no mTHP size of 17 KiB"),
        (("--programs", "srot"), "there is no program 'srot'"),
        (("--machine", "nowhere", "--", "true"), "there is no machine 'nowhere'"),
        (("--", "no-such-program"), "cannot run 'no-such-program'"),
        (("-o", "no/such/folder/x.json", "--", "true"), "there is no folder no/such/folder"),
        (("missing.ftt",), "there is no trace missing.ftt"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], says: str) -> None:
    ran = run("verify", *words)
    assert_refused(ran)
    assert says in ran.err


def test_near_names_are_suggested() -> None:
    assert "sort" in run("verify", "--programs", "srot").err


def test_an_existing_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    stored, mark = tmp_path / "stored.json", tmp_path / "mark"
    stored.write_text("{}")
    assert_refused(run("verify", "-o", stored, "--", "touch", mark))
    assert not mark.exists() and stored.read_text() == "{}"


def test_a_dry_run_runs_nothing_and_changes_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    before = {path: path.read_text() for path in THP.glob("**/enabled")}
    ran = run("verify", "--dry-run", "--knobs", "never,thp,no-thp,populate", "--runs", "7", "--", "touch", mark)
    assert (ran.code, ran.err) == (0, "")
    assert not mark.exists()
    assert {path: path.read_text() for path in THP.glob("**/enabled")} == before
    assert "7 rounds over" in ran.out and "PR_SET_THP_DISABLE, 1, 0" in ran.out and "FIRSTTOUCH_POPULATE=1" in ran.out
    assert ran.out.endswith("Nothing was run or changed; files that are set would be restored, whatever happens.\n")


def test_a_dry_run_of_the_manifest_lists_every_program() -> None:
    out = run("verify", "--dry-run", "--programs", "all").out
    assert out.count("\nrun ") + out.startswith("run ") >= 10


def test_a_program_that_fails_as_it_is_is_refused() -> None:
    ran = run("verify", "--knobs", "no-thp", "--machine", "vm-2cpu-zen4", "--", "sh", "-c", "echo broken >&2; exit 4")
    assert ran.code == 2 and ran.out == ""
    assert "fails as it is: exit 4: broken" in ran.err and "Traceback" not in ran.err


def test_without_root_and_with_it_a_programs_own_knob_can_be_checked(tmp_path: Path) -> None:
    if not any(finding.name.startswith("record") and finding.ok for finding in examine()):
        pytest.skip("this machine does not let us record")
    stored = tmp_path / "stored.json"
    options = ("--knobs", "no-thp,populate", "--runs", "2", "--machine", "vm-2cpu-zen4", "--json", "-o", stored)
    ran = run("verify", *options, "--", "/bin/sh", "-c", "exit 0")
    tree = json.loads(ran.out)
    faults = next(claim for claim in tree["claims"] if claim["observable"] == "faults")
    assert {"knob", "observable", "predicted", "measured", "error_ratio", "verdict", "why"} <= set(faults)
    assert set(faults["measured"]) == {"median", "low", "high", "n"} and faults["measured"]["n"] == 2
    if os.geteuid() == 0:
        assert abs(faults["predicted"] - faults["measured"]["median"]) <= 3
    assert ran.code == (1 if tree["summary"]["failed"] else 0 if tree["summary"]["passed"] else 3)
    assert {claim["verdict"] for claim in tree["claims"] if claim["knob"] == "populate"} == {"not measurable"}
    assert json.loads(stored.read_text()) == tree
