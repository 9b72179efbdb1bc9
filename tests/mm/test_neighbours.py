"""Resident neighbours: windows by hand, faults against the twin, and what scaling does to pages of 4 and 16 KiB."""

import msgspec
import pytest
from bsd_twin import BsdTwin
from hand_workload import PAGE_BYTES, Hand, small_machine
from handmade import machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import programs

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost
from firsttouch.mm.faultahead import ADVICE_NORMAL, ADVICE_RANDOM, ADVICE_SEQUENTIAL, make_around
from firsttouch.mm.pmap import check
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload import RANDOM, SEQUENTIAL, SHARED, SHMEM, WRITABLE

FILE_FLAGS = 0
SHM = WRITABLE | SHARED | SHMEM

SCALED = [  # page bytes, rounding -> normal behind and ahead, sequential ahead; unscaled 3, 4, 7
    (4096, "floor", (3, 4, 7)),
    (2048, "floor", (3, 4, 7)),  # pages below 4 KiB are left alone
    (8192, "none", (3, 4, 7)),
    (8192, "floor", (1, 2, 3)),  # 1.5, 2, 3.5
    (8192, "half", (2, 2, 4)),
    (8192, "ceil", (2, 2, 4)),
    (16384, "floor", (0, 1, 1)),  # 0.75, 1, 1.75
    (16384, "half", (1, 1, 2)),
    (16384, "ceil", (1, 1, 2)),
    (65536, "floor", (0, 0, 0)),  # 0.1875, 0.25, 0.4375
    (65536, "half", (0, 0, 0)),
    (65536, "ceil", (1, 1, 1)),
]


@pytest.mark.parametrize(("page_bytes", "scaling", "want"), SCALED)
def test_scaled_windows(page_bytes, scaling, want):
    a = make_around("netbsd", page_bytes=page_bytes, scaling=scaling)
    assert (a.behind[ADVICE_NORMAL], a.ahead[ADVICE_NORMAL], a.ahead[ADVICE_SEQUENTIAL]) == want
    assert (a.behind[ADVICE_RANDOM], a.ahead[ADVICE_RANDOM], a.behind[ADVICE_SEQUENTIAL]) == (0, 0, 0)


WINDOWS = [  # policy, mapping, flags, faulting page -> pages mapped
    ("netbsd-9", (0, 512), FILE_FLAGS, 100, range(97, 105)),
    ("netbsd-9", (99, 102), FILE_FLAGS, 100, range(99, 102)),  # clipped to the mapping
    ("netbsd-9", (0, 512), FILE_FLAGS | SEQUENTIAL, 100, range(100, 108)),
    ("netbsd-9", (0, 512), FILE_FLAGS | RANDOM, 100, [100]),
    ("freebsd-6", (0, 512), FILE_FLAGS, 100, range(96, 105)),
    ("freebsd-6", (0, 512), FILE_FLAGS | RANDOM, 100, range(96, 105)),
    ("freebsd-6", (98, 101), FILE_FLAGS, 100, range(98, 101)),
]


@pytest.mark.parametrize(("name", "vma", "flags", "page", "want"), WINDOWS)
def test_a_read_of_a_file_maps_its_window(name, vma, flags, page, want):
    h = Hand([2])
    t, v = h.thread(), h.vma(*vma, flags)
    h.read(t, v, page, *want)
    outcome = simulate(h.workload(), small_machine(), policy.load(name))
    assert outcome.faults == 1
    for beyond in (min(want) - 1, max(want) + 1):  # one more fault each
        if vma[0] <= beyond < vma[1]:
            h = Hand([2])
            t, v = h.thread(), h.vma(*vma, flags)
            h.read(t, v, page, beyond)
            assert simulate(h.workload(), small_machine(), policy.load(name)).faults == 2


@pytest.mark.parametrize(("flags", "nr_code"), [(FILE_FLAGS, 8), (WRITABLE, 0)])
def test_what_a_neighbour_costs_besides_its_entry(flags, nr_code):
    """8 pages are mapped: each of code is made coherent, and 7 take entries of the TLB that the user loads again."""
    h = Hand([2])
    h.read(h.thread(), h.vma(0, 512, flags), 100)
    here = small_machine()
    costs = msgspec.structs.replace(here.cost, sync_page=Cost(1000), tlb_reload=Cost(50))
    p = policy.load("netbsd-9")
    plain, slow = (simulate(h.workload(), on, p) for on in (here, msgspec.structs.replace(here, cost=costs)))
    assert slow.system_ns - plain.system_ns == nr_code * 1000
    assert slow.user_ns - plain.user_ns == 7 * 50


def test_netbsd_maps_across_page_tables_and_freebsd_only_in_those_that_exist():
    for name, faults in (("netbsd-9", 1), ("freebsd-6", 2)):
        h = Hand([2])
        t, v = h.thread(), h.vma(0, 1024, FILE_FLAGS)
        h.read(t, v, 511, 512)
        assert simulate(h.workload(), small_machine(), policy.load(name)).faults == faults


def test_fresh_private_memory_is_never_filled_ahead():
    for name in ("netbsd-9", "freebsd-6"):
        h = Hand()
        h.write(h.thread(), h.vma(0, 64), *range(64))
        outcome = simulate(h.workload(), small_machine(), policy.load(name))
        assert (outcome.faults, outcome.zeroed_in_fault_bytes) == (64, 64 * PAGE_BYTES)


def test_shared_memory_is_filled_up_to_netbsd_9():
    h = Hand()
    h.write(h.thread(), h.vma(0, 64, SHM), 20)
    p = policy.load("netbsd-9")
    assert simulate(h.workload(), small_machine(), p).zeroed_in_fault_bytes == 7 * PAGE_BYTES  # and its own page
    ten = msgspec.structs.replace(p, fault_ahead=msgspec.structs.replace(p.fault_ahead, fills_shared=False))
    nine, later = (simulate(h.workload(), small_machine(), q) for q in (p, ten))
    assert later.zeroed_in_fault_bytes == 0
    assert nine.fault_ns - later.fault_ns == 7 * (300 + 300 + 20)  # allocate, zero, map


def test_a_child_of_fork_finds_its_pages_a_window_at_a_time():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, *range(64))
    child = h.fork(t, mm=1)
    h.read(child, v, *range(64))
    h.join(t, child)
    outcome = simulate(h.workload(), small_machine(), policy.load("netbsd-9"))
    # faults at 0, 5, 10, .. 60: each maps 4 ahead; what is behind is mapped
    assert outcome.faults_by_kind["resident"] == 13
    assert outcome.copied_bytes == 0
    linux = simulate(h.workload(), small_machine(), policy.load("linux-6.18"))
    assert linux.faults_by_kind["resident"] == 0
    assert linux.faults == 64


def test_freebsd_stops_at_the_first_page_that_is_not_in_memory():
    def nr_faults(*pages):
        h = Hand([1, 1])
        t, v = h.thread(), h.vma(0, 64)
        h.write(t, v, *[page for page in range(64) if page not in (22, 37)])
        child = h.fork(t, mm=1)
        h.read(child, v, *pages)
        h.join(t, child)
        p = policy.load("freebsd-6")
        p = msgspec.structs.replace(p, fault_ahead=msgspec.structs.replace(p.fault_ahead, fork_maps=False))
        return simulate(h.workload(), small_machine(), p).faults_by_kind["resident"]

    assert nr_faults(20, 19, 21) == 1  # -1, +1, -2, then +2 is missing
    assert nr_faults(20, 18) == 1
    assert nr_faults(20, 17) == nr_faults(20, 23) == 2
    assert nr_faults(36, 35) == 1  # -1, then +1 is missing
    assert nr_faults(36, 34) == 2
    assert nr_faults(50, *range(46, 55)) == 1
    assert nr_faults(50, 45) == nr_faults(50, 55) == 2


def test_a_neighbour_that_the_parent_has_too_is_copied_when_it_is_written():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, 20, 21)
    child = h.fork(t, mm=1)
    h.read(child, v, 20)
    h.write(child, v, 21)
    h.join(t, child)
    outcome = simulate(h.workload(), small_machine(), policy.load("netbsd-9"))
    assert outcome.faults_by_kind | {"resident": 1, "cow": 1} == outcome.faults_by_kind


def test_a_child_that_writes_copies_unless_it_is_the_last_user():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, 1, 20)
    child = h.fork(t, mm=1)
    h.write(child, v, 1)
    h.sleep(child, 1_000_000)
    h.write(child, v, 20)
    h.unmap(t, 20, 21)
    h.sleep(t, 10_000_000)
    outcome = simulate(h.workload(), small_machine(2), policy.load("netbsd-9"))
    assert outcome.faults_by_kind | {"cow": 1, "resident": 1, "zero_fill": 2} == outcome.faults_by_kind
    assert outcome.copied_bytes == PAGE_BYTES


RULES = {
    "netbsd-9": {"rule": "netbsd", "behind": 3, "ahead": 4, "fills_shared": True, "fork_maps": False},
    "freebsd-6": {"rule": "freebsd", "behind": 4, "ahead": 4, "after_copies": True},
}
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def same(program, name, nr_cpus, recorded_window=16, **changes):
    p = policy.load(name)
    p = msgspec.structs.replace(p, fault_ahead=msgspec.structs.replace(p.fault_ahead, **changes))
    told = RULES[name] | {key.removesuffix("_pages"): value for key, value in changes.items()}
    twin = BsdTwin(program.vmas, recorded_window=recorded_window, **told)
    faults = twin.run(program.steps)
    workload = program.hand.workload(recorded_fault_around_bytes=recorded_window * PAGE_BYTES)
    world = replay(workload, small_machine(nr_cpus), p)
    outcome = simulate(workload, small_machine(nr_cpus), p)
    assert {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr} == faults
    assert outcome.peak_bytes == twin.peak * PAGE_BYTES
    assert outcome.copied_bytes == twin.copied * PAGE_BYTES
    assert check(world.pmap) == []
    assert world.buddy.free_pages[0] == len(world.pmap.refs)


@EXAMPLES
@given(programs(), st.sampled_from(list(RULES)), st.integers(1, 2), st.integers(0, 5), st.integers(0, 9))
def test_plain_touches(program, name, nr_cpus, behind, ahead):
    same(program, name, nr_cpus, behind_pages=behind, ahead_pages=ahead)


@EXAMPLES
@given(programs(recorded=True), st.sampled_from(list(RULES)), st.booleans(), st.booleans(), st.sampled_from([1, 16]))
def test_recorded_touches(program, name, fork_maps, after_copies, recorded_window):
    same(program, name, 2, recorded_window, fork_maps=fork_maps, after_copies=after_copies)


# -- effects


def sparse_files_and_shared_memory(page_bytes):
    """Every eighth page of a file is read, and of shared memory written: neighbours are nobody's need."""
    h = Hand([2])
    t = h.thread()
    f, s = h.vma(0, 512, FILE_FLAGS), h.vma(512, 1024, SHM)
    h.read(t, f, *range(0, 512, 8))
    h.write(t, s, *range(512, 1024, 8))
    h.unmap(t, 0, 1024)
    return h.workload(page_bytes=page_bytes)


@pytest.mark.parametrize("page_bytes", [4096, 16384])
def test_scaling_helps_large_pages_and_changes_nothing_at_4_kib(page_bytes):
    workload = sparse_files_and_shared_memory(page_bytes)
    on = machine(nr_cpus=1, memory_bytes=256 << 20, page_bytes=page_bytes)
    plain, scaled = (simulate(workload, on, policy.load(n)) for n in ("netbsd-9", "netbsd-9+window-scaled"))
    if page_bytes == 4096:
        names = ("policy", "available", "apply")
        assert [msgspec.structs.replace(o, **dict.fromkeys(names, "")) for o in (plain, scaled)].count(
            msgspec.structs.replace(plain, **dict.fromkeys(names, ""))
        ) == 2
        return
    assert scaled.faults == plain.faults
    assert scaled.system_ns < plain.system_ns
    # windows of 1 + 1 instead of 3 + 4 pages: 6 zeroed pages fewer a fault, but for the ends of the mapping
    assert plain.zeroed_in_fault_bytes - scaled.zeroed_in_fault_bytes == (64 * 6 - 3) * page_bytes


def test_scaling_costs_faults_where_every_page_is_read_in_order():
    h = Hand()
    h.read(h.thread(), h.vma(0, 512, FILE_FLAGS), *range(512))
    on = machine(nr_cpus=1, memory_bytes=256 << 20, page_bytes=16384)
    plain, scaled = (
        simulate(h.workload(page_bytes=16384), on, policy.load(n)) for n in ("netbsd-9", "netbsd-9+window-scaled")
    )
    assert (plain.faults, scaled.faults) == (103, 256)  # 512 / 5 and 512 / 2, rounded up


@pytest.mark.parametrize(
    ("field", "value"), [("behind_pages", -1), ("ahead_pages", 512), ("sequential_ahead_pages", 9999)]
)
def test_windows_that_cannot_be_are_refused(tmp_path, field, value):
    file = tmp_path / "mine.toml"
    file.write_text(f'extends = "netbsd-9"\n[fault_ahead]\n{field} = {value}\n')
    with pytest.raises(FirsttouchError, match=f"{field} is {value}"):
        policy.load(file)


def test_a_window_of_a_bsd_needs_its_rule(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "linux-6.18"\n[fault_ahead]\nscaling = "floor"\n')
    with pytest.raises(FirsttouchError, match=r"fault_ahead\.neighbours"):
        policy.load(file)
