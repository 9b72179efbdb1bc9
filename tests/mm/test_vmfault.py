"""FreeBSD 13: times worked out by hand, faults as in a twin, locks that stick, and conservation."""

import msgspec
import numpy as np
import pytest
from freebsd_twin import FreebsdTwin
from hand_workload import PAGE_BYTES, Hand, recorded, small_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import crowd, family
from programs import programs

from firsttouch import policy
from firsttouch.mm import pmap, pv, vmlocks
from firsttouch.mm.pcplist import NR_PAGES
from firsttouch.mm.reservation import NR_MAPPINGS
from firsttouch.mm.sched import DONE
from firsttouch.mm.simulate import outcome_of, replay, simulate
from firsttouch.mm.vmlocks import CHUNK_LIST, MAP, OBJECT, PAGE, PROCTREE, PV_LIST
from firsttouch.workload import ANON, IMAGE, SHARED, SHMEM, WRITABLE

# trap 500, of which 30 look up and 30 install; page 300, of which 12 queue it; zeroing 300, copying 400; file 300;
# a list refilled: 15 pages of 12 ns each
FAULT_NS, REFILL_NS, CHUNK_NS = 440 + 30 + 288 + 300 + 30 + 12, 180, 288 + 12
SCHEMES = ("", "+pv-one", "+pv-superpage", "+pv-superpage-batch")


def freebsd(diffs=""):
    return policy.load("freebsd-13" + diffs)


def run(hand, nr_cpus=1, diffs=""):
    """The world after a workload, and its outcome."""
    return run_workload(hand.workload(), nr_cpus, diffs)


def run_workload(workload, nr_cpus=1, diffs=""):
    world = replay(workload, small_machine(nr_cpus), freebsd(diffs))
    assert_conserved(world)
    return world, outcome_of(world, workload, freebsd(diffs))


def assert_conserved(world):
    """Nothing is held or mapped at the end, and every page is free, or on a CPU's list."""
    assert vmlocks.check(world.vmlocks, world.sched) == []
    assert pv.check(world.pv) == []
    assert pmap.check(world.pmap) == []
    assert not world.vmlocks.held.any()
    assert not world.vmlocks.open.any()
    assert (world.pv.place_of == pv.NO_PLACE).all()
    assert (world.pv.first == pv.NO_CHUNK).all()
    assert world.pv.counts[pv.NR_CREATED] == world.pv.counts[pv.NR_DESTROYED]
    assert world.buddy.free_pages.sum() + world.percpu.state[:, :, NR_PAGES].sum() == len(world.buddy.order)


# -- one fault, by hand


def test_a_write_fault_on_fresh_memory():
    h = Hand()
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, 7, 8)
    world, outcome = run(h)
    assert outcome.fault_ns == 2 * FAULT_NS + REFILL_NS + CHUNK_NS
    assert outcome.faults_by_kind["zero_fill"] == 2
    nr = dict(enumerate(world.vmlocks.nr_acquired))
    # each fault: the map, the object to look and again to queue, a list, a page; exit: the list once (they are side by
    # side), the chunk, the object, the page's lock once, the process tree
    assert nr | {MAP: 2, OBJECT: 2 * 2 + 1, PV_LIST: 2 + 1, PAGE: 2 + 1, CHUNK_LIST: 1 + 1, PROCTREE: 1} == nr
    assert world.vmlocks.wait_ns.sum() == 0


def test_a_read_fault_on_fresh_memory_gets_a_page_of_its_own():
    h = Hand()
    v, t = h.vma(0, 512), h.thread()
    h.read(t, v, 7)
    h.write(t, v, 7)
    _, outcome = run(h)
    assert outcome.faults_by_kind["zero_fill"] == outcome.faults == 1


def test_a_cached_page_is_entered_by_a_reader_with_its_neighbours():
    """Page 2 of [0, 5): neighbours 1, 3, 0, 4; each by itself takes its list's lock."""
    h = Hand()
    v, t = h.vma(0, 5, 0), h.thread()
    h.read(t, v, 2, 0, 1, 3, 4)
    world, outcome = run(h)
    assert outcome.faults_by_kind["file"] == outcome.faults == 1
    assert outcome.fault_ns == 440 + 30 + CHUNK_NS + 30 + 300 + 4 * 20
    assert world.vmlocks.nr_acquired[PV_LIST] == 5 + 1
    assert world.vmlocks.nr_acquired[OBJECT] == 1
    assert world.vmlocks.nr_acquired[PAGE] == 0


def test_a_private_page_of_a_file_is_copied_with_neither_object_locked():
    """The object behind has it: 30 to look there, 400 to copy."""
    h = Hand()
    v, t = h.vma(0, 512, WRITABLE), h.thread()
    h.write(t, v, 9)
    world, outcome = run(h)
    assert outcome.faults_by_kind["cow"] == 1
    assert outcome.fault_ns == 440 + 30 + REFILL_NS + 288 + 30 + 400 + CHUNK_NS + 30 + 12
    assert world.vmlocks.nr_acquired[OBJECT] == 3 + 1  # first, behind, first; exit
    # first: look, make a page, look behind; behind: look; first: queue; exit: free it
    exit_ns = 12 + 100 - 60 - 12
    assert world.vmlocks.hold_ns[OBJECT] == 30 + REFILL_NS + 288 + 30 + 12 + exit_ns - 30 + 30


def test_a_copy_takes_the_old_page_off_its_list():
    """Read, then written: the page of the file leaves its list, which another lock guards, for the copy."""
    h = Hand()
    v, t = h.vma(0, 1, WRITABLE), h.thread()
    h.read(t, v, 0)
    h.write(t, v, 0)
    world, outcome = run(h)
    assert outcome.faults_by_kind | {"file": 1, "cow": 1} == outcome.faults_by_kind
    assert world.vmlocks.nr_acquired[PV_LIST] == 1 + 2 + 1


def test_a_write_makes_a_shared_page_of_a_file_writable_as_a_reader():
    h = Hand()
    v, t = h.vma(0, 1, WRITABLE | SHARED), h.thread()
    h.read(t, v, 0)
    h.write(t, v, 0)
    world, outcome = run(h)
    assert outcome.faults_by_kind | {"file": 1, "reuse": 1} == outcome.faults_by_kind
    assert world.vmlocks.nr_acquired[OBJECT] == 2
    assert world.vmlocks.nr_acquired[PV_LIST] == 1 + 1  # the page stays on its list


# -- pages mapped with the mapping


def mapped(nr_pages, flags=0, start=0, diffs="", **kinds):
    """A file is mapped and `read`; what that took."""
    h = Hand([2])
    v, t = h.vma(start, start + nr_pages, flags), h.thread()
    h.map(t, v)
    h.read(t, v, *kinds.get("read", ()))
    return run(h, diffs=diffs)


def test_mmap_maps_the_first_96_pages_of_a_file_under_one_lock():
    world, outcome = mapped(200, read=range(96))
    assert outcome.faults == 0
    nr = world.vmlocks.nr_acquired
    assert [nr[kind] for kind in (MAP, OBJECT, PV_LIST, CHUNK_LIST)] == [1, 2, 1 + 1, 1 + 1]
    # the map: the call 100, the object's reference 12, a chunk 288 + 12, 96 pages of 20
    assert world.vmlocks.hold_ns[MAP] == 100 + 12 + CHUNK_NS + 96 * 20
    assert world.vmlocks.hold_ns[OBJECT] == 12 + CHUNK_NS + 96 * 20
    assert mapped(200, read=range(97))[1].faults == 1


def test_exec_maps_all_of_a_programs_file():
    world, outcome = mapped(400, IMAGE, read=range(400))
    assert outcome.faults == 0
    assert world.pv.counts[pv.NR_CREATED] == 3
    assert world.vmlocks.nr_acquired[PV_LIST] == 1 + 1  # over three chunks; exit


@pytest.mark.parametrize("flags", [ANON | WRITABLE, WRITABLE | SHARED | SHMEM])
def test_nothing_else_is_mapped_before_it_is_touched(flags):
    world, outcome = mapped(100, flags, read=(0, 1))
    assert outcome.faults == 2
    assert world.vmlocks.nr_acquired[PV_LIST] == 2 + 1  # exit: one frame


def test_a_private_page_that_was_mapped_with_the_file_is_copied_at_the_first_write():
    h = Hand()
    v, t = h.vma(0, 10, WRITABLE), h.thread()
    h.map(t, v)
    h.write(t, v, 3)
    world, outcome = run(h)
    assert outcome.faults_by_kind["cow"] == outcome.faults == 1
    assert world.vmlocks.nr_acquired[PV_LIST] == 1 + 2 + 3  # the copy: old list, new list; exit: file, copy, file


def test_a_superpage_counts_as_one_page_of_those_that_mmap_maps():
    world, outcome = mapped(1024, diffs="+reservations", read=(0, 511, 512, 1023))
    assert (outcome.faults, world.reservation.counts[NR_MAPPINGS]) == (0, 2)
    world, outcome = mapped(1014, start=10, diffs="+reservations", read=(105, 106))
    assert (outcome.faults, world.reservation.counts[NR_MAPPINGS]) == (1, 0)
    world, outcome = mapped(1014, IMAGE, start=10, diffs="+reservations", read=(511, 512, 1023))
    assert (outcome.faults, world.reservation.counts[NR_MAPPINGS]) == (0, 1)


# -- locks that stick, chunks


@pytest.mark.parametrize("diffs", SCHEMES)
@pytest.mark.parametrize(("nr_pages", "runs"), [(100, 1), (168, 1), (512, 1), (1024, 3), (2000, 5)])
def test_an_exit_takes_the_lock_of_contiguous_memory_once_a_frame(nr_pages, runs, diffs):
    """The chunk that is not full comes first: of 1,024 pages its 16 are in frame 1, then frames 0 and 1 in order."""
    h = Hand([8])
    v, t = h.vma(0, 4096), h.thread()
    h.write(t, v, *range(nr_pages))
    world, _ = run(h, diffs=diffs)
    at_exit = world.vmlocks.nr_acquired[PV_LIST] - nr_pages
    assert at_exit == (1 if diffs == "+pv-one" else runs)
    assert world.pv.counts[pv.NR_CREATED] == -(-nr_pages // 168)


def alternating(nr_pages=100):
    """A process whose last pages come from two frames by turns: it freed them so, and the last freed come first."""
    h = Hand([4])
    v, t = h.vma(0, 2048), h.thread()
    h.write(t, v, *range(1024))
    for i in range(nr_pages // 2):
        h.unmap(t, i, i + 1)
        h.unmap(t, 512 + i, 513 + i)
    h.write(t, v, *range(1024, 1024 + nr_pages))
    h.unmap(t, 0, 1024)
    return h


@pytest.mark.parametrize(("diffs", "nr_locks"), [("", 256), ("+pv-one", 1), ("+pv-superpage", 128)])
def test_scattered_memory_takes_a_lock_for_each_page(diffs, nr_locks):
    nr = {}
    for nr_pages in (2, 100):
        world, _ = run(alternating(nr_pages), diffs=diffs)
        nr[nr_pages] = int(world.vmlocks.nr_acquired[PV_LIST]) - (1024 + nr_pages) - nr_pages
    # unmaps of single pages took it once for each; what is left are the big unmap, 2 frames, and the exit
    assert nr == ({2: 2, 100: 2} if diffs == "+pv-one" else {2: 2 + 2, 100: 2 + 100})
    assert world.pv.nr_locks == nr_locks


@pytest.mark.parametrize("nr_pages", [168, 800])
def test_a_batch_frees_chunks_together_with_the_lock_dropped(nr_pages):
    h = Hand([8])
    v, t = h.vma(0, 4096), h.thread()
    h.write(t, v, *range(nr_pages))
    one, _ = run(h, diffs="+pv-superpage")
    batch, _ = run(h, diffs="+pv-superpage-batch")
    chunks = -(-nr_pages // 168)
    assert one.vmlocks.nr_acquired[CHUNK_LIST] == 2 * chunks
    assert batch.vmlocks.nr_acquired[CHUNK_LIST] == chunks + 1
    assert one.vmlocks.hold_ns[PV_LIST] - batch.vmlocks.hold_ns[PV_LIST] == chunks * CHUNK_NS
    assert one.total.tolist() == batch.total.tolist()


def test_the_bytes_of_each_scheme():
    """256 MiB are 128 frames, and a file of 10 pages is in one more; a lock by itself is 32 bytes."""
    h = Hand()
    h.read(h.thread(), h.vma(0, 10, 0), 0)
    found = {diffs: run(h, diffs=diffs)[1].lock_bytes["pmap pv list"] for diffs in SCHEMES}
    assert found == {
        "": 256 * 32, "+pv-one": 32, "+pv-superpage": 129 * 64, "+pv-superpage-batch": 129 * 64,
    }  # fmt: skip


# -- fork


def test_fork_gives_the_child_entries_for_all_pages_of_its_parent():
    """400 pages are 3 chunks of each; the child's copying holds the parent's map, and takes the list's lock once."""
    h = Hand([2, 2])
    v, t = h.vma(0, 1024), h.thread()
    h.write(t, v, *range(400))
    child = h.fork(t, mm=1)
    h.join(t, child)
    world, outcome = run(h)
    assert world.pv.counts[pv.NR_CREATED] == 6
    # 400 faults, the copies (the lock is kept over chunks), two exits
    assert world.vmlocks.nr_acquired[PV_LIST] == 400 + 1 + 2
    assert world.vmlocks.nr_acquired[PROCTREE] == 1 + 2
    assert outcome.faults_by_kind["cow"] == 0


def test_a_write_after_fork_looks_into_the_parents_object():
    h = Hand([1, 1])
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, 3)
    child = h.fork(t, mm=1)
    h.write(child, v, 3)
    h.join(t, child)
    world, outcome = run(h)
    assert outcome.faults_by_kind["cow"] == 1
    # parent's fault 2, child's 3 (its own twice, the parent's once), exits 2
    assert world.vmlocks.nr_acquired[OBJECT] == 2 + 3 + 2


def test_faults_wait_for_an_unmap_of_their_address_space():
    """A unmaps 512 pages from 0 on; B of the same address space asks for the map while it is at that."""
    h = Hand([4])
    v = h.vma(0, 2048)
    a = h.thread()
    h.write(a, v, *range(512))
    h.unmap(a, 0, 512)
    b = h.thread(start_ns=512 * FAULT_NS + 20_000)  # refills and chunks take less, the unmap 100 a page
    h.write(b, v, 1000)
    world, _ = run(h, 2)
    assert world.vmlocks.nr_waited[MAP] == 1
    assert 25_000 < world.vmlocks.max_wait_ns[MAP] < 512 * 100


# -- faults as in the twin

EXAMPLES = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def same(program, diffs, nr_cpus, recorded_window=16):
    twin = FreebsdTwin(program.vmas, recorded_window=recorded_window)
    faults = twin.run(program.steps)
    workload = program.hand.workload(recorded_fault_around_bytes=recorded_window * PAGE_BYTES)
    world, outcome = run_workload(workload, nr_cpus, diffs)
    assert {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr} == faults
    assert outcome.peak_bytes == twin.peak * PAGE_BYTES
    assert outcome.untouched_bytes == twin.untouched * PAGE_BYTES
    assert outcome.copied_bytes == twin.copied * PAGE_BYTES
    return world, outcome


@EXAMPLES
@given(programs(), st.sampled_from(SCHEMES), st.integers(1, 3))
def test_plain_touches(program, diffs, nr_cpus):
    same(program, diffs, nr_cpus)


@EXAMPLES
@given(programs(recorded=True), st.sampled_from(SCHEMES), st.integers(1, 2), st.sampled_from([1, 16, 64]))
def test_recorded_touches(program, diffs, nr_cpus, recorded_window):
    same(program, diffs, nr_cpus, recorded_window)


# -- conservation


@EXAMPLES
@given(programs(), st.sampled_from(SCHEMES))
def test_more_cpus_add_waits_and_nothing_else(program, diffs):
    """But for the refills of more lists, whose pages move under the lock of the free queue, and for what threads that
    meet at one page do twice: that is compared where the counts of faults and of locks taken are the same."""
    work: dict[tuple[int, ...], set[int]] = {}
    for nr_cpus in (1, 2, 3):
        world, outcome = same(program, diffs, nr_cpus)
        waits = sum(use.wait_ns for use in outcome.locks.values())
        assert waits - outcome.locks[vmlocks.FREE_QUEUE].wait_ns == world.vmlocks.waited_ns.sum()
        assert nr_cpus > 1 or waits == 0
        taken = [use.acquired for name, use in outcome.locks.items() if name != vmlocks.FREE_QUEUE]
        did = (*outcome.faults_by_kind.values(), *taken)
        work.setdefault(did, set()).add(outcome.system_ns - waits - outcome.locks[vmlocks.FREE_QUEUE].hold_ns)
    assert all(len(times) == 1 for times in work.values())


@pytest.mark.parametrize("nr_cpus", [1, 2, 4])
@pytest.mark.parametrize("diffs", SCHEMES)
def test_threads_that_meet_everywhere(diffs, nr_cpus):
    for workload in (crowd().workload(), family().workload(), recorded(crowd().workload(), "basic")):
        world, outcome = run_workload(workload, nr_cpus, diffs)
        assert outcome.user_ns + outcome.system_ns <= nr_cpus * outcome.wall_ns or outcome.faults == 0
        assert simulate(workload, small_machine(nr_cpus), freebsd(diffs)) == outcome
        assert np.array_equal(world.vmlocks.max_wait_ns > 0, world.vmlocks.wait_ns > 0)


def test_a_thread_that_holds_locks_is_not_preempted():
    """Five threads on two CPUs, with slices shorter than a fault: they would wait for each other for ever."""
    chosen = freebsd()
    short = msgspec.structs.replace(chosen, sched=msgspec.structs.replace(chosen.sched, quantum_ns=100))
    workload = crowd().workload()
    world = replay(workload, small_machine(2), short)
    assert_conserved(world)
    assert (world.sched.state == DONE).all()
