"""What the pool says it saved, by hand."""

from pathlib import Path

import msgspec
import pytest

from firsttouch import machine
from firsttouch.pool.account import Stats

MIB = 1 << 20


def stats(**known: int) -> Stats:
    nothing = {field: 0 for field in Stats.__struct_fields__}
    return msgspec.convert(nothing | {"superpages": False} | known, Stats)


def test_faults_avoided_are_pages_or_superpages_of_what_was_reused() -> None:
    assert stats(reused_bytes=64 * MIB).faults_avoided == 16_384
    assert stats(reused_bytes=64 * MIB, superpages=True).faults_avoided == 32


def test_time_saved_is_that_of_the_faults_less_zeroing_and_cold_lines(round_machine: Path) -> None:
    m = machine.load(str(round_machine))
    page_ns = m.zero["temporal"].ns(4096, hot=False)
    fault_ns = m.cost.trap.ns + m.cost.alloc.ns + page_ns
    cold_ns = max(0.0, m.cost.line_cold.ns - m.cost.line_hot.ns)
    assert stats(reused_bytes=40960).saved_ns(m) == pytest.approx(10 * fault_ns)
    assert stats(reused_bytes=40960, zeroed_bytes=8192).saved_ns(m) == pytest.approx(10 * fault_ns - 2 * page_ns)
    lines = 4096 // m.line_bytes
    assert stats(reused_bytes=40960, ahead_bytes=4096).saved_ns(m) == pytest.approx(10 * fault_ns - lines * cold_ns)


def test_the_line_says_what_happened(round_machine: Path) -> None:
    some = stats(
        nr_mallocs=3, nr_callocs=2, hits=1, hot=1, ahead_bytes=MIB, reused_bytes=64 * MIB, scrubbed_bytes=2 * MIB
    )
    line = some.line(machine.load(str(round_machine)))
    assert line.startswith(
        "5 arrays from the pool; 2 of zeros, 1 zeroed ahead (1 MiB), 1 in cache; 16,384 faults avoided"
    )
    assert "saved by the costs of" in line and "did not fit" not in line
    assert "2 did not fit" in stats(nr_fallbacks=2).line()
