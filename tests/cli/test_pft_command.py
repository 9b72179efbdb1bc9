"""`firsttouch pft`, as a user types it."""

import json
from pathlib import Path

import pytest
from runner import assert_refused, run

from firsttouch._jit import JIT
from firsttouch.report import pft as report
from firsttouch.whatif.pft import PftResult
from firsttouch.workload.generators import PftTest, pft_row

CONTRACT = {
    "gb", "rep", "threads", "lines", "user_s", "system_s", "wall_s", "faults_per_cpu_s", "faults_per_wall_s",
}  # fmt: skip
GIB = 1 << 30


def test_the_model_prints_a_row_for_each_number_of_threads_and_lines(round_machine: Path) -> None:
    ran = run("pft", "--gib", "0.0625", "--reps", 2, "--threads", "1,2", "--lines", "1,64", "--machine", round_machine)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "# page-fault test: round under linux-6.18, in the model"
    assert "one page in 4, but the rates count all" in lines[1]
    assert lines[2].split() == ["Gb", "Rep", "Threads", "CLine", "User", "System", "Wall", "flt/cpu/s", "fault/wsec"]
    assert [line.split()[:4] for line in lines[3:]] == [
        ["0.0625", "2", "1", "1"], ["0.0625", "2", "1", "64"], ["0.0625", "2", "2", "1"], ["0.0625", "2", "2", "64"],
    ]  # fmt: skip
    assert ran.out.isascii() and max(map(len, lines)) <= 78


def test_json_of_the_model_holds_counts_made_by_hand(round_machine: Path) -> None:
    ran = run("pft", "--gib", "0.25", "--stride", "page", "--machine", round_machine, "--policy", "+mthp-64k", "--json")
    (row,) = json.loads(ran.out)["rows"]
    assert set(row) >= CONTRACT
    assert (row["pages"], row["touched_pages"], row["faults"]) == (65536, 65536, 4096)
    assert (row["machine"], row["policy"]) == ("round", "linux-6.18+mthp-64k")
    assert row["faults_per_wall_s"] == 65536 / row["wall_s"]


def test_memory_that_runs_out_is_a_line_and_exit_code_1(round_machine: Path) -> None:
    ran = run("pft", "--gib", "8", "--stride", "page", "--machine", round_machine)  # it has 1 GiB
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines()[-1].split(None, 3) == ["8", "1", "1", "out of memory"]
    ran = run("pft", "--gib", "8", "--stride", "page", "--machine", round_machine, "--json")
    (row,) = json.loads(ran.out)["rows"]
    assert (ran.code, row["out_of_memory"], row["wall_s"]) == (1, True, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--threads", "0"), "threads 0"),
        (("--threads", "1,two"), "not a list of whole numbers"),
        (("--threads", ""), "not a list of whole numbers"),
        (("--lines", "65"), "a page has 64"),
        (("--reps", "0"), "repetitions 0"),
        (("--gib", "0"), "cannot touch 0.0 GiB"),
        (("--gib", "-1"), "cannot touch -1.0 GiB"),
        (("--gib", "nan"), "cannot touch nan GiB"),
        (("--gib", "inf"), "cannot touch inf GiB"),
        (("--gib", "1e9"), "at most 16 TiB"),
        (("--gib", "1e-9"), "needs a page"),
        (("--stride", "5000"), "stride 5000"),
        (("--stride", "wide"), "'wide' is not a size"),
        (("--policy", "+thq"), "did you mean +thp"),
        (("--huge",), "--huge is for a real run"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(words: tuple[str, ...], said: str, round_machine: Path) -> None:
    ran = run("pft", "--gib", "0.01", "--machine", round_machine, *words)
    assert_refused(ran)
    assert said.lower() in ran.err.lower()


def test_an_unknown_machine_is_refused() -> None:
    assert_refused(run("pft", "--machine", "altix9000"))


@pytest.mark.skipif(not JIT, reason="memory is touched by compiled code only")
def test_for_real_and_compared(round_machine: Path) -> None:
    words = ("--gib", "0.03125", "--threads", "1,2", "--stride", "page", "--json")
    tree = json.loads(run("pft", *words).out)
    assert set(tree) == {"rows", "empty_s"} and tree["empty_s"] > 0
    assert [(row["threads"], row["machine"]) for row in tree["rows"]] == [(1, "host"), (2, "host")]
    tree = json.loads(run("pft", *words, "--compare", "--machine", round_machine).out)
    assert [row["machine"] for row in tree["model_rows"]] == ["round", "round"]
    for real, model, error in zip(tree["rows"], tree["model_rows"], tree["errors"], strict=True):
        for rate in ("faults_per_cpu_s", "faults_per_wall_s"):
            assert error[rate] == pytest.approx(model[rate] / real[rate] - 1)
    text = run("pft", *words[:-1], "--compare", "--machine", round_machine)
    assert text.code == 0 and "error is model / real - 1" in text.out


def rows(**changes: object):
    values = {"user_s": 0.19, "system_s": 14.29, "wall_s": 14.54, "faults": 196_608, **changes}
    return [pft_row(PftTest(4 * GIB, 3), page_bytes=16384, **values)]


def test_the_text_is_the_classic_one_and_fits_a_mail() -> None:
    # 4 GiB * 3 / 16 KiB = 786,432 pages; / 14.48 s of CPU, / 14.54 s of wall
    assert report.classic(rows()) == (
        "    Gb  Rep Threads     User    System      Wall   flt/cpu/s  fault/wsec\n"
        "     4    3       1   0.190s   14.290s   14.540s   54311.602   54087.483\n"
    )
    assert report.classic(rows(out_of_memory=True)).splitlines()[1] == "     4    3       1  out of memory"


def test_the_comparison_says_the_error_of_the_model() -> None:
    result = PftResult(rows(), rows(wall_s=7.27, machine="altix8", policy="linux-2.6.10"), 0.003)
    (error,) = result.errors
    assert (error.faults_per_cpu_s, error.faults_per_wall_s) == (0.0, 1.0)
    text = report.text(result)
    assert text.splitlines()[-1].split() == ["4", "3", "1", "54312", "54312", "+0.0%", "54087", "108175", "+100.0%"]
    assert "altix8 under linux-2.6.10" in text and "an empty child takes 3.00 ms" in text
    assert max(map(len, text.splitlines())) <= 78
