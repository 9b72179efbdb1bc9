"""Reservations: a state machine that knows where every page is, faults as in a twin, and numbers worked out by hand."""

import numpy as np
import pytest
from freebsd_twin import FreebsdTwin
from hand_workload import PAGE_BYTES, Hand, small_machine
from handmade import machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from programs import programs
from twin import Entry

from firsttouch import policy
from firsttouch._jit import state_kernel
from firsttouch._packed import packed
from firsttouch.mm import pmap, pv, vmlocks
from firsttouch.mm.buddy import NOT_HEAD, make_buddy
from firsttouch.mm.buddy import check as check_buddy
from firsttouch.mm.pcplist import NR_PAGES
from firsttouch.mm.reservation import (
    COUNTS,
    NO_FRAME,
    NOTHING,
    NR_MAPPINGS,
    QUEUED,
    RETURNED,
    break_oldest,
    check,
    give_back,
    make_reservation,
    nr_free_pages,
    reserve,
    take_page,
)
from firsttouch.mm.simulate import outcome_of, replay
from firsttouch.mm.vmlocks import CHUNK_LIST, PV_LIST, RESERV
from firsttouch.mm.world import OUT_OF_MEMORY
from firsttouch.workload import ANON, WRITABLE, WRITE


@state_kernel
def kernel_reserve(r, b, zone, region):
    return reserve(r, b, zone, region)


@state_kernel
def kernel_take(r, b, frame, i, tick):
    return take_page(r, b, frame, i, tick)


@state_kernel
def kernel_give_back(r, b, pfn, tick):
    return give_back(r, b, pfn, tick)


@state_kernel
def kernel_break(r, b, node):
    return break_oldest(r, b, node)


NODES, NODE_PAGES, REGIONS = 2, 2048, 6


class Reservations(RuleBasedStateMachine):
    """The reference: {region: (frame, {i})}, a queue a node as a list, and the pages that broken ones left taken."""

    def __init__(self):
        super().__init__()
        self.b = make_buddy([NODE_PAGES] * NODES)
        self.r = make_reservation(True, NODES * NODE_PAGES, REGIONS, NODES)
        self.pb, self.pr = packed(self.b), packed(self.r)
        self.owned, self.loose, self.queues, self.moved = {}, set(), [[] for _ in range(NODES)], {}
        self.tick = 0

    def move(self, frame):
        """Whether the frame, whose population has changed, moves in its queue: what the model is to answer."""
        queue = self.queues[frame * 512 // NODE_PAGES]
        used = next(used for f, used in self.owned.values() if f == frame)
        if frame in queue and len(used) < 512 and self.moved[frame] == self.tick:
            return NOTHING
        if frame in queue:
            queue.remove(frame)
        if len(used) < 512:
            queue.append(frame)
            self.moved[frame] = self.tick
        return QUEUED

    @rule(region=st.integers(0, REGIONS - 1), node=st.integers(0, NODES - 1), first=st.integers(0, 511),
          nr=st.sampled_from([1, 2, 500, 512]))  # fmt: skip
    def touch(self, region, node, first, nr):
        if region not in self.owned:
            frame = kernel_reserve(self.pr, self.pb, node, region)
            if frame == NO_FRAME:
                assert self.b.nr_free[node, 0, 9:].sum() == 0
                return
            self.owned[region] = (frame, set())
        frame, used = self.owned[region]
        for i in range(first, min(512, first + nr)):
            if i not in used:
                used.add(i)
                assert kernel_take(self.pr, self.pb, frame, i, self.tick) == self.move(frame)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), nr=st.sampled_from([1, 3, 511, 512]))
    def free(self, data, nr):
        region = data.draw(st.sampled_from(sorted(self.owned)))
        frame, used = self.owned[region]
        for i in sorted(used)[:nr]:
            used.remove(i)
            if used:
                assert kernel_give_back(self.pr, self.pb, frame * 512 + i, self.tick) == self.move(frame)
                continue
            assert kernel_give_back(self.pr, self.pb, frame * 512 + i, self.tick) == RETURNED
            del self.owned[region]
            if frame in self.queues[frame * 512 // NODE_PAGES]:
                self.queues[frame * 512 // NODE_PAGES].remove(frame)

    @rule(node=st.integers(0, NODES - 1))
    def run_out(self, node):
        queue = self.queues[node]
        assert kernel_break(self.pr, self.pb, node) == bool(queue)
        if queue:
            frame = queue.pop(0)
            region = next(region for region, (f, _) in self.owned.items() if f == frame)
            self.loose |= {frame * 512 + i for i in self.owned.pop(region)[1]}

    @rule(ticks=st.integers(1, 3))
    def wait(self, ticks):
        self.tick += ticks

    @invariant()
    def every_page_is_in_one_place(self):
        assert check(self.r, self.b) == []
        assert check_buddy(self.b) == []
        place = np.zeros(NODES * NODE_PAGES, np.int64)
        for pfn in np.flatnonzero(self.b.order != NOT_HEAD):
            place[pfn : pfn + (1 << (int(self.b.order[pfn]) - 1))] += 1
        for frame, _ in self.owned.values():
            place[frame * 512 : frame * 512 + 512] += 1
        for pfn in self.loose:
            place[pfn] += 1
        assert (place == 1).all()
        for frame, used in self.owned.values():
            bits = np.unpackbits(self.r.used[frame], bitorder="little")
            assert np.flatnonzero(bits).tolist() == sorted(used)
        for node in range(NODES):
            found, frame = [], int(self.r.head[node])
            while frame != NO_FRAME:
                found.append(frame)
                frame = int(self.r.next[frame])
            assert found == self.queues[node]


Reservations.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestReservations = Reservations.TestCase


# -- under a kernel


def freebsd(diffs=""):
    return policy.load("freebsd-13+reservations" + diffs)


def run(hand, nr_cpus=1, diffs="", memory_bytes=256 << 20):
    workload, chosen = hand.workload(), freebsd(diffs)
    world = replay(workload, machine(nr_cpus=nr_cpus, memory_bytes=memory_bytes), chosen)
    assert_conserved(world)
    return world, outcome_of(world, workload, chosen)


def assert_conserved(world):
    assert vmlocks.check(world.vmlocks, world.sched) == []
    assert pv.check(world.pv) == []
    assert pmap.check(world.pmap) == []
    assert check(world.reservation, world.buddy) == []
    if not world.total[OUT_OF_MEMORY]:  # else it ends in the middle of a fault
        assert not world.vmlocks.held.any()
        on_lists = world.buddy.free_pages.sum() + world.percpu.state[:, :, NR_PAGES].sum()
        assert on_lists + nr_free_pages(world.reservation) == len(world.buddy.order)
        assert (world.pv.place_of == pv.NO_PLACE).all()


def counts(world):
    return {name: int(nr) for name, nr in zip(COUNTS, world.reservation.counts, strict=True) if nr}


def test_a_region_that_is_written_to_becomes_a_superpage_and_exits_as_one():
    """512 pages fill their reservation: one pv entry, one chunk of the four. The exit removes one entry of a list."""
    h = Hand([2])
    v, t = h.vma(0, 1024), h.thread()
    h.write(t, v, *range(512))
    world, outcome = run(h)
    assert counts(world) == {"created": 1, "full": 1, "promotions": 1, "returned": 1}
    assert outcome.faults == 512
    assert world.pv.counts[pv.PEAK_CHUNKS] == 4
    assert world.vmlocks.nr_acquired[CHUNK_LIST] == 4 + 1 + 1  # made, three given up by the promotion, one at exit
    assert world.vmlocks.nr_acquired[PV_LIST] == 512 + 1
    plain = replay(h.workload(), small_machine(), policy.load("freebsd-13"))
    saved = 511 * (30 + 30) + 3 * 288  # removals; chunks that the exit would have freed with the lock held
    assert plain.vmlocks.hold_ns[PV_LIST] - world.vmlocks.hold_ns[PV_LIST] >= saved


def test_a_region_that_was_read_becomes_a_read_only_superpage_which_a_write_breaks_up():
    """The last read promotes. A write demotes, makes its page writable, and fails to promote; so does each further
    one but the last, which finds all written to.
    """
    h = Hand([1])
    v, t = h.vma(0, 512), h.thread()
    h.read(t, v, *range(512))
    h.write(t, v, *range(512))
    world, outcome = run(h)
    assert outcome.faults_by_kind | {"zero_fill": 512, "reuse": 512} == outcome.faults_by_kind
    assert counts(world) == {
        "created": 1, "full": 1, "promotions": 2, "demotions": 1, "failures": 511, "returned": 1,
    }  # fmt: skip


def test_written_and_read_pages_are_not_promoted_together_and_the_attempt_makes_the_read_ones_read_only():
    h = Hand([1])
    v, t = h.vma(0, 512), h.thread()
    h.read(t, v, 7)
    h.write(t, v, *range(7), *range(8, 512))
    h.write(t, v, 7)  # faults, and promotes
    world, outcome = run(h)
    assert outcome.faults_by_kind | {"zero_fill": 512, "reuse": 1} == outcome.faults_by_kind
    assert counts(world) == {"created": 1, "full": 1, "failures": 1, "promotions": 1, "returned": 1}


def test_no_reservation_begins_before_its_mapping_and_anonymous_memory_may_reach_past_its_end():
    h = Hand([3])
    v, t = h.vma(100, 1100), h.thread()
    h.write(t, v, *range(100, 1100))
    world, _ = run(h)
    assert counts(world) == {"created": 2, "full": 1, "promotions": 1, "returned": 2}  # pages 512.., 1024..


def test_where_memory_runs_out_the_oldest_reservation_is_broken():
    """8 MiB are 4 frames. Four regions take one page each, 1 ms apart, a fifth one: the first reservation gives up."""
    h = Hand([8])
    v, t = h.vma(0, 4096), h.thread()
    for region in range(5):
        h.touch(t, v, 512 * region, 1, think_ns=2_000_000)
    h.write(t, v, 1)  # the first region's reservation is broken: from elsewhere
    world, outcome = run(h, memory_bytes=8 << 20)
    assert not outcome.out_of_memory
    assert counts(world) == {"created": 4, "broken": 1, "returned": 3}


def test_all_of_memory_can_be_used_though_it_is_reserved():
    h = Hand([2048])
    v, t = h.vma(0, 2048 * 512), h.thread()
    h.write(t, v, *(512 * (i % 2048) + i // 2048 for i in range(2048)))
    _, outcome = run(h, memory_bytes=8 << 20)  # 2048 pages
    assert not outcome.out_of_memory
    assert outcome.peak_bytes == 8 << 20
    h.write(t, v, 511)
    assert run(h, memory_bytes=8 << 20)[1].out_of_memory


def test_a_change_within_a_tick_takes_no_lock():
    """20 faults of 1.1 us each are within the first millisecond but for the first, which queues the reservation."""
    h = Hand([1])
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, *range(20))
    h.touch(t, v, 20, 1, think_ns=2_000_000)
    world, _ = run(h)
    assert world.vmlocks.nr_acquired[RESERV] == 2 + 1  # and the last page that goes


@pytest.mark.parametrize(("start", "faults", "mappings"), [(0, 1, 1), (1, 104, 0)])
def test_a_cached_file_is_mapped_by_regions_where_it_covers_them(start, faults, mappings):
    """512 pages: one fault if they are a region. Else, in order, each fault maps its page and four ahead: 103 faults
    for 511 pages, and one for the last, in a region whose page table did not exist when its neighbours faulted.
    """
    h = Hand([2])
    v, t = h.vma(start, start + 512, 0), h.thread()
    h.read(t, v, *range(start, start + 512))
    world, outcome = run(h)
    assert outcome.faults == faults
    assert world.reservation.counts[NR_MAPPINGS] == mappings
    assert mappings == 0 or world.vmlocks.nr_acquired[PV_LIST] == 2


def test_fork_shares_superpages_and_a_copy_breaks_one_up():
    h = Hand([1, 1])
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, *range(512))
    child = h.fork(t, mm=1)
    h.write(child, v, 3)
    h.join(t, child)
    world, outcome = run(h)
    assert outcome.faults_by_kind | {"zero_fill": 512, "cow": 1} == outcome.faults_by_kind
    assert counts(world) == {"created": 1, "full": 1, "promotions": 1, "demotions": 1, "returned": 1}


class ReservingTwin(FreebsdTwin):
    """Adds reservations: {(space, region): pages taken}, and where each page is from."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.taken, self.home = {}, {}
        self.promotions = self.failures = 0

    def touch(self, mm, vma, page, kind):
        before = sum(self.faults.values())
        self.vma = self.vmas[vma]
        super().touch(mm, vma, page, kind)
        if sum(self.faults.values()) > before:
            self.try_to_promote(self.spaces[mm], page // 512)

    def map_folio(self, space, page, order, near=range(0)):
        key = (id(space), page // 512)
        empty = not any(page // 512 * 512 <= other < page // 512 * 512 + 512 for other in space.pages)
        inside = page // 512 * 512 >= self.vma[0]
        super().map_folio(space, page, order, near)
        if inside and (key in self.taken or (self.was_empty and empty)) and page not in self.taken.get(key, ()):
            self.taken.setdefault(key, set()).add(page)
            self.home[id(space.pages[page].folio)] = (space.pages[page].folio, key, page)

    def zero_fill(self, space, page, kind, vma):
        self.was_empty = True
        return super().zero_fill(space, page, kind, vma)

    def cow(self, space, page, kind, vma):
        self.was_empty = not any(page // 512 == other // 512 for other in space.pages)
        space.whole.pop(page // 512, None)
        return super().cow(space, page, kind, vma)

    def reuse(self, space, page, kind, vma):
        space.whole.pop(page // 512, None)
        super().reuse(space, page, kind, vma)

    def drop(self, space, page):
        folio = space.pages[page].folio
        super().drop(space, page)
        if folio and not folio.users and id(folio) in self.home:
            _, key, home = self.home.pop(id(folio))
            self.taken[key].remove(home)
            if not self.taken[key]:
                del self.taken[key]

    def file(self, space, page, kind, vma):
        first = page // 512 * 512
        empty = not any(other // 512 == page // 512 for other in space.pages)
        if kind & 1 or (vma[2] & 2 and not vma[2] & 4) or not empty or first < vma[0] or first + 512 > vma[1]:
            super().file(space, page, kind, vma)
            return
        near = self.around(vma[0], vma[1], page, self.recorded_window)
        for other in range(first, first + 512):
            space.pages[other] = Entry("file", near=other != page and other in near)
        space.whole[page // 512] = "huge"

    def try_to_promote(self, space, region):
        pages = [space.pages.get(page) for page in range(region * 512, region * 512 + 512)]
        key = (id(space), region)
        if None in pages or region in space.whole or len(self.taken.get(key, ())) < 512:
            return
        wanted = None
        for i in [0, *range(511, 0, -1)]:
            entry = pages[i]
            if entry.what == "anon" and entry.writable and not entry.written:
                entry.writable = False
            if wanted is None:
                wanted = (entry.what, entry.writable)
            at_home = entry.folio and self.home.get(id(entry.folio), (0, 0, 0))[1:] == (key, region * 512 + i)
            if not at_home or (entry.what, entry.writable) != wanted:
                self.failures += 1
                return
        space.whole[region] = "huge"
        self.promotions += 1


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(max_steps=20), st.integers(1, 2))
def test_faults_promotions_and_failures_as_in_the_twin(program, nr_cpus):
    twin = ReservingTwin(program.vmas)
    faults = twin.run(program.steps)
    workload = program.hand.workload()
    world = replay(workload, small_machine(nr_cpus), freebsd())
    assert_conserved(world)
    outcome = outcome_of(world, workload, freebsd())
    assert {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr} == faults
    assert outcome.peak_bytes == twin.peak * PAGE_BYTES
    assert counts(world).get("promotions", 0) == twin.promotions
    assert counts(world).get("failures", 0) == twin.failures


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "write", "rest", "rest", "unmap"]),
            st.integers(0, 1),
            st.sampled_from([0, 1, 100, 511]),
            st.sampled_from([1, 3, 512]),
        ),
        min_size=1, max_size=10,
    ),
    st.sampled_from([0, 1]),
)  # fmt: skip
def test_regions_that_fill_up(operations, start):
    """One process and its two regions: reads and writes of some pages, and of all that are missing ("rest")."""
    vmas, steps, h = [(start, 1024, ANON | WRITABLE)], [], Hand([2])
    v, t = h.vma(*vmas[0]), h.thread()
    for what, region, first, nr in operations:
        pages = range(max(start, region * 512 + first), min(region * 512 + 512, region * 512 + first + nr))
        if what == "rest":
            pages = range(max(start, region * 512), region * 512 + 512)
        if what == "unmap":
            h.unmap(t, pages.start, pages.stop)
            steps.append(("unmap", 0, pages.start, pages.stop))
            continue
        for page in pages:
            h.touch(t, v, page, WRITE if what != "read" else 0)
            steps.append(("touch", 0, 0, page, WRITE if what != "read" else 0))
    steps.append(("exit", 0))
    twin = ReservingTwin(vmas)
    faults = twin.run(steps)
    world, outcome = run(h)
    assert {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr} == faults
    assert counts(world).get("promotions", 0) == twin.promotions
    assert counts(world).get("failures", 0) == twin.failures
