"""A NumPy program with the pool beneath it: what faults, what stays mapped, by hand."""

import dataclasses

import numpy as np
import pytest
from hand_workload import Hand, linux, recorded, small_machine
from msgspec import structs

from firsttouch.mm.simulate import simulate
from firsttouch.policy import Policy, Userspace
from firsttouch.workload import (
    ADVISED,
    ANON,
    HEAP,
    KEPT,
    MAP,
    NORESERVE,
    SHARED,
    SHMEM,
    TOUCH,
    UNMAP,
    WRITABLE,
    Workload,
)
from firsttouch.workload.pooled import pooled

LARGE = 512  # pages: 2 MiB, the threshold of +pool


def numpy_program(hand: Hand, *mms: int) -> Workload:
    workload = dataclasses.replace(recorded(hand.workload()), numpy_mms=mms)
    workload.events.arg[workload.events.op == MAP] = 1
    return workload


def kept(diffs: str = "+pool") -> Policy:
    """The policy with a pool that costs nothing to start."""
    policy = linux(diffs)
    return structs.replace(policy, userspace=structs.replace(policy.userspace, pool_start_pages=0))


def faults(workload: Workload, diffs: str = "+pool") -> int:
    return simulate(workload, small_machine(), kept(diffs)).faults


def arrays(nr: int, pages: int, flags: int = ANON | WRITABLE, regions: int = 4) -> Hand:
    """`nr` arrays of `pages`, one after another at one address, each filled and freed."""
    h = Hand([regions])
    t, v = h.thread(), h.vma(0, pages, flags)
    for _ in range(nr):
        h.map(t, v)
        h.write(t, v, *range(pages))
        h.unmap(t, 0, pages)
    return h


def test_large_arrays_fault_in_once_and_stay() -> None:
    h = arrays(3, LARGE)
    assert faults(numpy_program(h, 0), "") == 3 * LARGE
    assert faults(numpy_program(h, 0)) == LARGE
    assert faults(numpy_program(h, 0), "+thp-madvise") == 3 * LARGE  # nobody advised it
    assert faults(numpy_program(h, 0), "+thp-madvise+pool") == 1  # the pool does


@pytest.mark.parametrize(
    "hand, mms",
    [
        (arrays(3, LARGE), ()),  # no NumPy
        (arrays(3, LARGE - 1), (0,)),  # too small
        (arrays(3, LARGE, ANON | WRITABLE | SHARED), (0,)),
        (arrays(3, LARGE, ANON | WRITABLE | SHMEM), (0,)),
        (arrays(3, LARGE, ANON | WRITABLE | NORESERVE), (0,)),
        (arrays(3, LARGE, WRITABLE), (0,)),  # a file
    ],
)
def test_other_memory_is_as_it_was_recorded(hand: Hand, mms: tuple[int, ...]) -> None:
    workload = numpy_program(hand, *mms)
    assert faults(workload) == faults(workload, "")


def test_the_end_of_the_heap_stays_if_it_is_large() -> None:
    h = Hand([4])
    t, heap = h.thread(), h.vma(0, 1200, ANON | WRITABLE | HEAP)
    for _ in range(2):
        h.map(t, heap)
        h.write(t, heap, *range(1200))
        h.unmap(t, 600, 1200)  # large
        h.write(t, heap, *range(600, 700))
        h.unmap(t, 600, 700)  # small: of other things than arrays
    workload = numpy_program(h, 0)
    assert faults(workload, "") == 2 * (1200 + 100)
    kept = pooled(workload, Userspace(LARGE * 4096))
    assert kept.events.arg[kept.events.op == UNMAP].tolist() == [1, 0, 1, 0]
    # 0 to 599 are touched again while they are mapped, as recorded; 600 to 699 are given back twice
    assert faults(workload) == 1200 + 600 + 100


def test_an_address_space_without_numpy_is_left_alone() -> None:
    h = Hand([4, 4])
    t, v = h.thread(), h.vma(0, LARGE)
    for mm in (0, 1):
        for _ in range(2):
            h.map(t, v)
            h.write(t, v, *range(LARGE))
            h.unmap(t, 0, LARGE)
        if mm == 0:
            h.exec(t, 1)
    assert faults(numpy_program(h, 1)) == 2 * LARGE + LARGE
    assert faults(numpy_program(h, 0, 1)) == 2 * LARGE


def test_what_was_saved_is_the_faults_and_the_unmapping() -> None:
    h = arrays(3, LARGE)
    workload = dataclasses.replace(numpy_program(h, 0), user_ns=0, system_ns=10**9)
    machine = small_machine()
    plain, pooled_ = (simulate(workload, machine, policy) for policy in (linux(""), kept("+pool")))
    assert plain.system_ns - pooled_.system_ns >= 2 * LARGE * (machine.cost.trap.ns + machine.cost.unmap_page.ns)
    assert pooled_.peak_bytes == LARGE * 4096


def test_ranges_that_touch_become_one_that_ends_where_superpages_do() -> None:
    h = Hand([8])
    t = h.thread()
    for start, end in ((700, 1400), (1400, 2000), (3000, 3600)):
        v = h.vma(start, end)
        h.map(t, v)
        h.write(t, v, start)
    workload = pooled(numpy_program(h, 0), Userspace(LARGE * 4096))
    assert workload.vmas.start[-2:].tolist() == [512, 2560]
    assert workload.vmas.end[-2:].tolist() == [2048, 3584 + 512]
    assert (workload.vmas.flags[-2:] == ANON | WRITABLE | ADVISED).all()
    touched = workload.events.kind & KEPT != 0
    assert workload.events.vma[touched].tolist() == [3, 3, 4]
    assert np.count_nonzero(touched) == 3


def test_only_what_is_new_of_a_mapping_that_grew_counts() -> None:
    h = Hand([8])
    t = h.thread()
    for start, end in ((1000, 1300), (700, 1300), (700, 1600), (150, 1600)):  # 300, 300, 300 and 550 pages are new
        h.map(t, h.vma(start, end))
    h.write(t, 3, *range(150, 1600))
    workload = pooled(numpy_program(h, 0), Userspace(LARGE * 4096))
    kept = workload.events.page[workload.events.kind & KEPT != 0]
    assert (kept.min(), kept.max()) == (150, 699)


def test_what_was_mapped_before_numpy_is_not_numpys() -> None:
    h = arrays(3, LARGE)
    workload = numpy_program(h, 0)
    workload.events.arg[np.flatnonzero(workload.events.op == MAP)] = 0
    assert faults(workload) == 3 * LARGE


def test_starting_the_pool_takes_its_time_and_pages() -> None:
    h = Hand([4, 4])
    t, v = h.thread(), h.vma(0, LARGE)
    h.write(t, v, 0)
    child = h.fork(t, mm=1)
    h.map(child, v)
    h.write(child, v, *range(LARGE))
    h.join(t, child)
    h.map(t, v)
    h.write(t, v, 1, 2)
    workload, machine = numpy_program(h, 0), small_machine()
    free, started = (simulate(workload, machine, policy) for policy in (kept(), linux("+pool")))
    assert started.faults - free.faults == 750
    assert started.peak_bytes == (750 + 3) * 4096
    assert 23_000_000 < started.user_ns - free.user_ns < 25_000_000
    before = workload.events.op[: workload.threads.end[0]].tolist()
    after = pooled(workload, linux("+pool").userspace)
    assert after.events.op[: after.threads.end[0]].tolist() == [*before[:3], TOUCH, *before[3:]]
    for one, other in ((after.events, workload.events), (after.threads, workload.threads), (after.vmas, workload.vmas)):
        assert [column.dtype for column in one] == [column.dtype for column in other]  # else all is compiled twice
    assert after.mm_regions.dtype == workload.mm_regions.dtype
    twice = numpy_program(h, 0, 1)
    assert simulate(twice, machine, linux("+pool")).faults - simulate(twice, machine, kept()).faults == 2 * 750


@pytest.mark.parametrize("by_thread", [False, True])
def test_a_child_forked_with_the_pool_starts_none(by_thread: bool) -> None:
    h = Hand([4, 4])
    t, v = h.thread(), h.vma(0, LARGE)
    h.map(t, v)
    h.write(t, v, 0)
    forker = h.fork(t) if by_thread else t
    child = h.fork(forker, mm=1)
    h.map(child, v)
    h.write(child, v, 1)
    h.join(forker, child)
    if by_thread:
        h.join(t, forker)
    workload, machine = numpy_program(h, 0, 1), small_machine()
    assert simulate(workload, machine, linux("+pool")).faults - simulate(workload, machine, kept()).faults == 750
