"""The model's fault counts against the running kernel's, for the NumPy example: the claim that what-if rests on.

Claim: under THP never the replay has exactly as many faults as the trace has touches; under mTHP 64 KiB, mTHP 512 KiB
and THP always it is within 2 % of ru_minflt + ru_majflt of a run under that setting. One run each, fixed beforehand.
Address-space randomisation is off for both, because under THP the kernel's own count moves by several percent with the
alignment of arrays.
"""

import ctypes
import os
import sys
from pathlib import Path

import pytest

from firsttouch import policy
from firsttouch.host import knobs
from firsttouch.host.present import BASE

PROGRAM = Path(__file__).parents[2] / "src/firsttouch/bundled/pipeline.py"
THP = "/sys/kernel/mm/transparent_hugepage"
ADDR_NO_RANDOMIZE = 0x0040000
TOLERANCE_RATIO = 0.02

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: tracepoints, and THP settings of the kernel"),
    pytest.mark.skipif(not os.access(f"{THP}/hugepages-64kB/enabled", os.W_OK), reason="needs a kernel with mTHP"),
]


@pytest.fixture
def fixed_addresses():
    libc = ctypes.CDLL(None)
    before = libc.personality(0xFFFFFFFF)
    libc.personality(before | ADDR_NO_RANDOMIZE)
    yield
    libc.personality(before)


def settings(thp, size=None):
    sizes = {f"{THP}/hugepages-{kib}kB/enabled": "never" for kib in (16, 32, 64, 128, 256, 512, 1024)}
    if size:
        sizes[f"{THP}/hugepages-{size}kB/enabled"] = "always"
    return {f"{THP}/enabled": thp, **sizes}


def test_fault_counts_of_the_numpy_example(tmp_path, fixed_addresses):
    from firsttouch.host.present import host_machine
    from firsttouch.mm.simulate import simulate
    from firsttouch.record.recorder import record
    from firsttouch.trace import Trace
    from firsttouch.workload.from_trace import from_trace

    command = [sys.executable, str(PROGRAM)]
    recorded = record(command, tmp_path / "base.ftt", level="full")
    assert recorded.touches == pytest.approx(recorded.minflt + recorded.majflt, rel=0.01)
    with Trace(tmp_path / "base.ftt") as trace:
        workload = from_trace(trace)
    machine, _ = host_machine(lambda text: None)
    assert simulate(workload, machine, policy.load(BASE)).faults == recorded.touches
    for diff, knob_settings in (
        ("+mthp-64k", settings("never", 64)),
        ("+mthp-512k", settings("never", 512)),
        ("+thp", settings("always")),
    ):
        with knobs.set_knobs(knob_settings):
            # Recorded as it is, so that the program runs in the same environment; the count is the kernel's.
            run = record(command, tmp_path / f"run{diff}.ftt", level="basic", as_is=True)
        predicted = simulate(workload, machine, policy.load(BASE + diff)).faults
        print(f"{diff}: predicted {predicted}, kernel {run.minflt + run.majflt}")
        assert predicted == pytest.approx(run.minflt + run.majflt, rel=TOLERANCE_RATIO), diff
