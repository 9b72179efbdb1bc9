"""Exports are read back by other readers than ours, and give the trace's numbers."""

import json
from pathlib import Path

import duckdb
import handmade
import pytest

from firsttouch.errors import FirsttouchError
from firsttouch.report.exports import export
from firsttouch.trace import Trace
from firsttouch.trace.schema import TABLES


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(handmade.write_trace(tmp_path / "run.ftt", stacks=True))


def test_parquet_has_every_table_and_row(trace: Trace, tmp_path: Path) -> None:
    folder = export(trace, "parquet", tmp_path / "o'clock")
    assert {path.stem for path in folder.iterdir()} == set(TABLES)
    name = str(folder / "touch.parquet").replace("'", "''")
    nr, first = duckdb.sql(f"SELECT count(*), min(vaddr) FROM '{name}' WHERE kind = 1").fetchall()[0]
    assert (nr, first) == (handmade.ANON_PAGES, handmade.ANON_START)


def test_speedscope_weighs_each_chain_by_the_bytes_it_touched(trace: Trace, tmp_path: Path) -> None:
    tree = json.loads(export(trace, "speedscope", tmp_path / "out.json").read_text())
    (profile,) = tree["profiles"]
    names = [frame["name"] for frame in tree["shared"]["frames"]]
    assert [[names[i] for i in sample] for sample in profile["samples"]] == [["main_hand", "fill"]]  # outermost first
    assert profile["weights"] == [1025 * 4096]
    assert (profile["endValue"], profile["unit"]) == (1025 * 4096, "bytes")
    assert tree["shared"]["frames"][names.index("fill")] == {"name": "fill", "file": "hand.c", "line": 12}


def test_speedscope_needs_call_chains(hand_trace: Path, tmp_path: Path) -> None:
    with Trace(hand_trace) as trace, pytest.raises(FirsttouchError, match="no call chains"):
        export(trace, "speedscope", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_perfetto_has_one_instant_a_touch_and_counts_bytes(trace: Trace, tmp_path: Path) -> None:
    events = json.loads(export(trace, "perfetto", tmp_path / "out.json").read_text())["traceEvents"]
    touches = [event for event in events if event.get("cat") == "touch"]
    assert len(touches) == 1025
    assert touches[0]["name"] == "file" and touches[0]["ts"] == handmade.STEP_NS / 1000
    assert touches[1]["args"] == {"vaddr": hex(handmade.ANON_START), "map": "//anon"}
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"][-1] == 1025 * 4096
    assert {event["name"] for event in events if event.get("cat") == "task"} == {"exec", "exit"}


def test_what_cannot_be_written_is_told(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(FirsttouchError, match="no export format"):
        export(trace, "csv", tmp_path / "out")
    with pytest.raises(FirsttouchError, match="the trace itself"):
        export(trace, "perfetto", trace.path, force=True)
    (tmp_path / "there").mkdir()
    with pytest.raises(FirsttouchError, match="exists already"):
        export(trace, "parquet", tmp_path / "there")
    with pytest.raises(FirsttouchError, match="cannot write"):
        export(trace, "perfetto", tmp_path / "there", force=True)
