"""Page-table pages: who pays for them, and what a cache that is kept zeroed saves."""

import msgspec
import pytest
from hand_workload import PAGE_BYTES, Hand, recorded, small_machine

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost
from firsttouch.mm.simulate import simulate
from firsttouch.workload.generators import storm

BASE = "linux-2.6.10"
ZEROED, CACHED = f"{BASE}+table-pages-zeroed", f"{BASE}+table-page-cache"
MADE_NS = 300 + 300  # allocate and zero
TAKEN_NS = 12


def with_room(name, nr_pages):
    p = policy.load(name)
    return msgspec.structs.replace(p, zero=msgspec.structs.replace(p.zero, table_cache_pages=nr_pages))


def three_regions(*pages):
    h = Hand([3])
    h.write(h.thread(), h.vma(0, 1536), *pages)
    return h.workload()


def test_the_first_fault_of_a_region_pays_for_its_page_table():
    for pages, nr in (((0, 1, 511), 1), ((0, 512, 513), 2), ((1535, 0, 700), 3)):
        plain, zeroed = (simulate(three_regions(*pages), small_machine(), policy.load(n)) for n in (BASE, ZEROED))
        assert (plain.table_pages, zeroed.table_pages, zeroed.table_pages_cached) == (0, nr, 0)
        assert zeroed.fault_ns - plain.fault_ns == nr * MADE_NS
        assert zeroed.system_ns - plain.system_ns == nr * (MADE_NS + TAKEN_NS)  # and back at the end
        assert zeroed.zeroed_in_fault_bytes - plain.zeroed_in_fault_bytes == nr * PAGE_BYTES


def test_what_lies_in_no_cache_is_paid_for_when_a_page_table_is_made_and_given_back():
    plain, cold = small_machine(), small_machine()
    cold = msgspec.structs.replace(cold, cost=msgspec.structs.replace(cold.cost, table_page=Cost(ns=700.0)))
    for name, times in ((BASE, 0), (ZEROED, 4), (CACHED, 4)):
        warm_ns, cold_ns = (simulate(three_regions(0, 600), on, policy.load(name)).system_ns for on in (plain, cold))
        assert cold_ns - warm_ns == times * 700


def generations(nr, nr_regions=3):
    """One process after another, each in an address space of its own, touches a page of each region and ends."""
    h = Hand([1] + [nr_regions] * nr)
    t, v = h.thread(), h.vma(0, 512 * nr_regions)
    for i in range(nr):
        child = h.fork(t, mm=1 + i)
        h.write(child, v, *range(0, 512 * nr_regions, 512))
        h.join(t, child)
    return h.workload()


@pytest.mark.parametrize(("room", "cached"), [(50, 9), (3, 9), (2, 6), (0, 0)])
def test_a_generation_leaves_its_page_tables_to_the_next(room, cached):
    zeroed, kept = (simulate(generations(4), small_machine(), with_room(n, room)) for n in (ZEROED, CACHED))
    assert (kept.table_pages, kept.table_pages_cached) == (12, cached)
    assert zeroed.table_pages_cached == 0
    assert zeroed.fault_ns - kept.fault_ns == cached * (MADE_NS - TAKEN_NS)
    assert zeroed.faults == kept.faults


def test_each_cpu_has_a_cache_of_its_own():
    h = Hand([1, 1])
    v = h.vma(0, 512)
    for i in range(2):  # at one time, on two CPUs
        h.write(h.thread(mm=i), v, *range(5))
    two, one = (simulate(h.workload(), small_machine(n), policy.load(CACHED)) for n in (2, 1))
    assert (two.table_pages, two.table_pages_cached) == (2, 0)
    assert one.table_pages == 2


def test_unmapping_keeps_the_page_table():
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, 0)
    h.unmap(t, 0, 64)
    h.write(t, v, 0)
    outcome = simulate(h.workload(), small_machine(), policy.load(ZEROED))
    assert outcome.table_pages == 1


def test_a_storm_of_processes_gains():
    zeroed, kept = (simulate(storm(20, at_once=1), small_machine(), policy.load(n)) for n in (ZEROED, CACHED))
    assert kept.wall_ns < zeroed.wall_ns
    assert kept.table_pages_cached > kept.table_pages / 2


def test_a_replay_as_recorded_takes_as_long_as_recorded():
    """The recording kernel made and zeroed each page table in the recorded gap: charged anew, that cancels out."""
    h = Hand([3])
    t, v = h.thread(), h.vma(0, 1536)
    h.write(t, v, *range(0, 1536, 256), think_ns=100_000)
    h.exit(t, think_ns=100_000)
    workload = recorded(h.workload())
    plain, zeroed = (simulate(workload, small_machine(), policy.load(n)) for n in (BASE, ZEROED))
    assert zeroed.wall_ns - plain.wall_ns == 3 * TAKEN_NS  # freeing them is no part of the fault


def test_a_cache_of_fewer_than_no_pages_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "linux-2.6.10"\n[zero]\ntable_cache_pages = -1\n')
    with pytest.raises(FirsttouchError, match="table_cache_pages is -1"):
        policy.load(file)
