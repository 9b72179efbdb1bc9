"""Tables: what a reader sees, in both layouts. The outcomes here are made up, to have cells of every kind."""

import io
from pathlib import Path

import handmade
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from firsttouch.mm.outcome import Disturbances, Latency, Outcome
from firsttouch.report import tables
from firsttouch.whatif import TraceFacts, WhatIf
from firsttouch.whatif.advice import advise

MIB = 1 << 20
GOLDEN = Path(__file__).with_name("whatif_plain.txt")


def outcome(policy: str, **changes: object) -> Outcome:
    values: dict[str, object] = {
        "policy": policy, "available": "now", "apply": "", "faults": 100_000,
        "faults_by_kind": {"zero_fill": 75_000, "cow": 10_000, "file": 10_000, "zero_page": 5_000},
        "fault_ns": 250_000_000, "user_ns": 700_000_000, "system_ns": 300_000_000, "wall_ns": 1_000_000_000,
        "background_ns": 0, "peak_bytes": 400 * MIB, "untouched_bytes": 0, "zeroed_hits": 0, "zeroed_misses": 0,
        "lock_wait_ns": {}, "latency": Latency(1, 2, 3, 4), "zeroed_in_fault_bytes": 0, "zeroed_ahead_bytes": 0,
        "copied_bytes": 0, "disturbances": Disturbances(0, 0, 0, 0), "out_of_memory": False, "supply": [],
    }  # fmt: skip
    return Outcome(**{**values, **changes})  # type: ignore[arg-type]


def made_up(command: list[str] | None = None, extra: list[Outcome] | None = None) -> WhatIf:
    base = outcome("linux-6.18")
    outcomes = [
        base,
        outcome(
            "linux-6.18+thp", faults=1_200, fault_ns=50_000_000, wall_ns=800_000_000, peak_bytes=500 * MIB,
            untouched_bytes=100 * MIB, apply="echo always > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        outcome(
            "linux-6.18+prezero-4k", available="patch", wall_ns=900_000_000, background_ns=60_000_000, apply="a kernel",
        ),
        outcome("linux-6.18+populate", out_of_memory=True, wall_ns=300_000_000),
        *(extra or []),
    ]  # fmt: skip
    facts = TraceFacts(
        name="run.ftt", command=command or ["python3", "run.py"], touches=100_000, lost=0, unseen=3, level="full",
        base_pages=True, finished=True, processes=1, threads=4, exit=0, wall_ns=1_000_000_000, minflt=100_003, majflt=0,
        near_gap_ns=None,
    )  # fmt: skip
    return WhatIf(facts, handmade.machine(), base.policy, True, outcomes, advise(outcomes, base), ["memory was cold"])


def terminal(result: WhatIf, width: int = 100) -> str:
    out = io.StringIO()
    tables.print_whatif(result, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_rows_are_sorted_by_wall_saved_and_what_ran_out_of_memory_is_last() -> None:
    cells = tables.whatif_cells(made_up())
    assert [row[0] for row in cells] == ["+thp", "+prezero-4k", "linux-6.18", "+populate"]
    saved = {row[0]: row[5] for row in cells}  # (1000 - 800) / 1000; (1000 - 900) / 1000; itself
    assert saved == {"+thp": "20.0%", "+prezero-4k": "10.0%", "linux-6.18": "-", "+populate": "fails"}
    assert [row[1] for row in cells] == ["now", "patch", "in use", "now"]


def test_the_header_says_what_was_recorded_and_what_it_cost() -> None:
    header = dict(tables.whatif_header(made_up()))
    assert header["recorded"] == "100,000 touches, 1 process, 4 threads, level full, 0 lost, 3 not seen"
    assert header["fault mix"] == "zero-fill 75.0%, COW copy 10.0%, file 10.0%, zero page 5.0%"
    # 250 ms of 1000 ms wall and of 700 + 300 ms of CPU time
    assert header["fault path"] == "250 ms over all threads with base pages: 25.0% of wall, 25.0% of CPU time"
    assert header["note"] == "memory was cold"


def test_plain_is_the_golden_text(regenerate: bool) -> None:
    text = tables.whatif_plain(made_up())
    if regenerate:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


NAMES = st.text(min_size=1, max_size=200)


@given(NAMES, NAMES, st.integers(0, 2**62), st.integers(0, 2**62))
def test_plain_is_ascii_and_narrow_whatever_the_names_and_sizes(
    command: str, policy: str, ns: int, nr_bytes: int
) -> None:
    odd = outcome(policy, faults=nr_bytes, fault_ns=ns, wall_ns=ns, peak_bytes=nr_bytes, untouched_bytes=nr_bytes)
    text = tables.whatif_plain(made_up([command], [odd] if policy != "linux-6.18" else []))
    assert text.isascii()
    assert all(letter == "\n" or letter.isprintable() for letter in text)
    assert max(map(len, text.splitlines())) <= tables.PLAIN_COLUMNS


def test_a_terminal_gets_a_table_no_wider_than_it_is() -> None:
    for width in (100, 120, 200):
        lines = terminal(made_up(), width).splitlines()
        assert max(map(len, lines)) <= width
        assert any(line.startswith("+thp") for line in lines)
        assert all(line == line.rstrip() for line in lines)


def test_a_narrow_terminal_gets_the_plain_text() -> None:
    assert terminal(made_up(), 60) == tables.whatif_plain(made_up())


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\nb", "tab\t", "\u202eright to left", "\x9b31m"])
def test_control_characters_of_a_program_do_not_reach_the_terminal(text: str) -> None:
    for shown in (terminal(made_up([text])), tables.whatif_plain(made_up([text])), tables.safe(text)):
        assert not any(letter in shown.replace("\n", "") for letter in "\x1b\x9b\t\u202e")
        assert "a\nb" not in shown


def test_markup_in_names_is_only_text() -> None:
    assert "[bold]x[/bold]" in terminal(made_up(["[bold]x[/bold]"]))


def test_savings_off_the_host_name_what_they_are_against() -> None:
    away = msgspec.structs.replace(made_up(), now_is_host=False)
    assert "saved is against linux-6.18." in tables.whatif_plain(away)
    assert "saved is against linux-6.18." in terminal(away)
