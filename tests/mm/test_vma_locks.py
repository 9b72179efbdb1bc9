"""When a fault falls back from its mapping's lock to mmap_lock, what it waits for, and what locks take in memory."""

import pytest
from hand_workload import Hand, linux, small_machine
from test_khugepaged import populations, promote_ns

from firsttouch.mm.locks import lock_bytes
from firsttouch.mm.simulate import simulate
from firsttouch.workload import KERNEL, WRITE

HANDOFF_NS = 100


def test_faults_in_kernel_mode_take_mmap_lock():
    h = Hand([1])
    v, t = h.vma(0, 512), h.thread()
    for page in range(10):
        h.touch(t, v, page, WRITE | (KERNEL if page % 2 else 0))
    workload = h.workload()
    assert simulate(workload, small_machine(), linux("+per-vma-lock")).mmap_lock_faults == 5
    assert simulate(workload, small_machine(), linux("-per-vma-lock")).mmap_lock_faults == 10


def test_the_lock_of_the_mapping_is_what_ships():
    shipped, named = (simulate(populations([30], 0), small_machine(2), linux(diff)) for diff in ("", "+per-vma-lock"))
    assert shipped.mmap_lock_faults == named.mmap_lock_faults == 0
    assert shipped.lock_wait_ns == named.lock_wait_ns


def beside_a_promotion(kind, page, last_page=255, wait_ns=10_000):
    """Thread 0 writes half a region, whose last fault promotes it; thread 1 writes one page of its own meanwhile.

    Both are of one address space. Pages to 1023 are one mapping, those from 1024 on another; both have been written to
    before unless `kind` says that the second is fresh.
    """
    h = Hand([4])
    one, other = h.vma(0, 1024), h.vma(1024, 2048)
    t = h.thread()
    h.write(t, one, 1000)
    if kind != "fresh":
        h.write(t, other, 2000)
    thread = h.fork(t)
    h.write(t, one, *range(last_page + 1))
    h.sleep(thread, 0)
    h.touch(thread, one if page < 1024 else other, page, WRITE | (KERNEL if kind == "kernel" else 0), think_ns=wait_ns)
    return h.workload()


FILLED_NS = 256 * 1088  # by then the region is half full, within some list refills


@pytest.mark.parametrize(
    ("kind", "page", "fallbacks"),
    [
        ("user", 700, 1),  # the mapping that is promoted: locked for writing
        ("user", 1500, 0),  # another one
        ("kernel", 1500, 1),
        ("fresh", 1500, 1),  # its first write needs mmap_lock for the anon_vma
    ],
)
def test_what_waits_while_a_region_is_promoted(kind, page, fallbacks):
    workload = beside_a_promotion(kind, page, wait_ns=FILLED_NS + promote_ns(256) // 2)
    outcome = simulate(workload, small_machine(2), linux("+promote-50"))
    assert outcome.promotions == 1
    assert outcome.mmap_lock_faults == fallbacks
    waited_ns = outcome.lock_wait_ns["mmap"]
    assert (waited_ns > promote_ns(256) // 4) == (fallbacks == 1)
    assert waited_ns < promote_ns(256)


def test_after_the_promotion_nothing_waits():
    workload = beside_a_promotion("user", 700, wait_ns=FILLED_NS + 2 * promote_ns(256))
    outcome = simulate(workload, small_machine(2), linux("+promote-50"))
    assert outcome.mmap_lock_faults == 0
    assert outcome.lock_wait_ns["mmap"] <= 4 * HANDOFF_NS


@pytest.mark.parametrize(
    ("page_table", "per_vma", "bytes_by_class"),
    [
        # 2 zones and their lists of 4 CPUs: 2 * (1 + 4) spinlocks of 4. 3 address spaces: rwsems of 40; 50 mappings: 8
        ("split", True, {"zone": 40, "mmap": 520, "page_table": 800}),  # 200 tables: 4 bytes each
        ("split", False, {"zone": 40, "mmap": 120, "page_table": 800}),
        ("mm", True, {"zone": 40, "mmap": 520, "page_table": 12}),
        ("atomic", True, {"zone": 40, "mmap": 520, "page_table": 0}),
        ("global", True, {"zone": 40, "mmap": 520, "page_table": 32}),
    ],
)
def test_what_locks_take(page_table, per_vma, bytes_by_class):
    counts = {"nr_zones": 2, "nr_cpus": 4, "nr_mms": 3, "nr_vmas": 50, "nr_tables": 200}
    assert lock_bytes(page_table, per_vma, **counts) == bytes_by_class


def test_what_locks_take_is_counted_at_the_peak():
    h = Hand([3, 1, 1])
    v, t = h.vma(0, 1536), h.thread()
    h.write(t, v, 0, 512, 1024)
    for mm in (1, 2):  # one child after the other: two address spaces at one time
        child = h.fork(t, mm=mm)
        h.join(t, child)
    outcome = simulate(h.workload(), small_machine(2), linux())
    # 1 zone, 2 CPUs: 12. 2 address spaces and 1 mapping: 88. 3 tables and the child's 1: 16.
    assert outcome.lock_bytes == {"zone": 12, "mmap": 88, "page_table": 16}
