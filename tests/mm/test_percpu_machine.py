"""Per-CPU lists and scrubbers over the buddy, under any sequence of operations; the reference is sets and contents."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_buddy_machine import GARBAGE, buddy_pages

from firsttouch.mm import buddy
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, make_buddy
from firsttouch.mm.percpu import (
    NO_LIST,
    NO_ORDER,
    check,
    list_of,
    make_percpu,
    order_of_list,
    pages_on_lists,
    pcp_alloc,
    pcp_drain,
    pcp_free,
)
from firsttouch.mm.scrub import done, is_ready, make_scrub, next_block, scrub_rules, wake_after_free, write_start

NR_CPUS = 2
START_ORDER = 3


def list_blocks(p, b):
    """{(cpu, zone, k, z): [pfn]} of the per-CPU lists."""
    out = {}
    for cpu, zone, i in np.ndindex(*p.first.shape):
        blocks, pfn = [], int(p.first[cpu, zone, i])
        while pfn != NO_PFN:
            blocks.append(pfn)
            pfn = int(b.next[pfn])
        if blocks:
            out[cpu, zone, order_of_list(i), i & 1] = blocks
    return out


class PercpuMachine(RuleBasedStateMachine):
    @initialize(
        zones=st.lists(st.sampled_from((600, 120, 33)), min_size=1, max_size=2),
        zeroed=st.booleans(),
        has_zeroed=st.booleans(),
        batch_pages=st.sampled_from((1, 2, 5)),
        stop_order=st.integers(0, START_ORDER),
    )
    def boot(self, zones, zeroed, has_zeroed, batch_pages, stop_order):
        ends = np.cumsum(zones).tolist()
        self.zones = [range(end - pages, end) for pages, end in zip(zones, ends, strict=True)]
        self.has_zeroed = has_zeroed
        self.b = make_buddy(zones, 9, zeroed and has_zeroed)
        self.p = make_percpu(self.b, NR_CPUS, batch_pages=batch_pages, has_zeroed=has_zeroed)
        self.s = make_scrub(len(zones))
        self.rules = scrub_rules("scrubd", start=START_ORDER, stop=stop_order, max_order=9)
        self.holds = dict.fromkeys(range(ends[-1]), 0 if zeroed else GARBAGE)
        self.stamp = 0
        self.held = []  # (zone, pfn, k)
        self.flying = []  # (zone, pfn, k)
        self.awake = set()  # zones, each of which has its own daemon
        self.wakeups = 0
        self.scrubbed_pages = 0

    def has(self, zone, k, z):
        """Whether the buddy can give a block: it has one of that class, of that order or above."""
        return any(
            self.b.order[pfn] > k and self.b.zeroed[pfn] == z and pfn in self.zones[zone]
            for pfn in np.flatnonzero(self.b.order).tolist()
        )

    @rule(
        cpu=st.integers(0, NR_CPUS - 1),
        zone=st.integers(0, 1),
        k=st.sampled_from((0, 0, 0, 0, 1, 2, 3, 5, 9)),
        wants_zeros=st.booleans(),
        writes=st.booleans(),
        times=st.sampled_from((30, 5, 1)),
    )
    def alloc(self, cpu, zone, k, wants_zeros, writes, times):
        zone %= len(self.zones)
        for _ in range(times):
            own = list_blocks(self.p, self.b)
            can = {z: (cpu, zone, k, z) in own or self.has(zone, k, z) for z in (UNZEROED, ZEROED)}
            before = int(self.b.free_pages[zone])
            pfn, z, moved = pcp_alloc(self.p, self.b, cpu, zone, k, wants_zeros)
            assert moved == before - self.b.free_pages[zone]
            assert (pfn != NO_PFN) == (can[UNZEROED] or can[ZEROED])
            if pfn == NO_PFN:
                return
            preferred = ZEROED if wants_zeros and self.has_zeroed else UNZEROED
            assert z == (preferred if can[preferred] else 1 - preferred)
            if (cpu, zone, k, z) in own:
                assert (pfn, moved) == (own[cpu, zone, k, z][0], 0)
            pages = range(pfn, pfn + 2**k)
            assert pfn % 2**k == 0
            assert all(page in self.zones[zone] for page in pages)
            if z == ZEROED:
                assert all(self.holds[page] == 0 for page in pages)
            self.held.append((zone, pfn, k))
            if writes:
                self.stamp += 1
                self.holds.update(dict.fromkeys(pages, self.stamp))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), cpu=st.integers(0, NR_CPUS - 1), zeroes=st.booleans(), times=st.sampled_from((40, 5, 1)))
    def free(self, data, cpu, zeroes, times):
        which = data.draw(st.integers(0, len(self.held) - 1)) if times == 1 else 0
        for _ in range(min(times, len(self.held))):
            zone, pfn, k = self.held.pop(which)
            if zeroes:
                self.holds.update(dict.fromkeys(range(pfn, pfn + 2**k), 0))
            before = int(self.b.free_pages[zone])
            unzeroed_before = {page for page, z in buddy_pages(self.b).items() if z == UNZEROED}
            spilled, highest = pcp_free(self.p, self.b, cpu, zone, pfn, k, ZEROED if zeroes else UNZEROED)
            assert spilled == self.b.free_pages[zone] - before
            self.wake(zone, highest, unzeroed_before)

    @rule(cpu=st.integers(0, NR_CPUS - 1), rarely=st.integers(0, 5))
    def drain(self, cpu, rarely):
        if rarely:
            return
        kept = pages_on_lists(self.p)
        drained, highest = pcp_drain(self.p, self.b, cpu)
        assert pages_on_lists(self.p) == kept - drained
        assert not any(where[0] == cpu for where in list_blocks(self.p, self.b))
        assert (highest >= 0) <= (drained > 0)

    def wake(self, zone, highest, unzeroed_before):
        """A scrubber wakes if unzeroed pages that came back now lie in a block of START_ORDER or more."""
        came = {page for page, z in buddy_pages(self.b).items() if z == UNZEROED} - unzeroed_before
        heads = {pfn: int(self.b.order[pfn]) - 1 for pfn in np.flatnonzero(self.b.order).tolist()}
        grown = [k for pfn, k in heads.items() if any(page in came for page in range(pfn, pfn + 2**k))]
        assert highest == max(grown, default=NO_ORDER)
        woke = wake_after_free(self.s, self.rules, self.b, zone, highest, 0, 0)
        assert woke == (zone not in self.awake and bool(grown) and max(grown) >= START_ORDER)
        if woke:
            self.awake.add(zone)
            self.wakeups += 1

    @precondition(lambda self: self.has_zeroed)
    @rule(zone=st.integers(0, 1), is_woken=st.booleans())
    def scrub(self, zone, is_woken):
        zone %= len(self.zones)
        if is_woken:
            assert write_start(self.s, self.rules, self.b, 0, 0) == len(self.zones) - len(self.awake)
            self.wakeups += len(self.zones) - len(self.awake)
            self.awake = set(range(len(self.zones)))
        ready = is_ready(self.s, zone, 0)
        assert ready == (zone in self.awake and all(where != zone for where, _, _ in self.flying))
        if not ready:
            return
        wanted = self.has(zone, self.rules.stop, UNZEROED)
        pfn, k, where = next_block(self.s, self.rules, self.b, zone, 0, 0)
        assert wanted == (pfn != NO_PFN)
        if pfn == NO_PFN:
            self.awake.remove(zone)
        else:
            assert where == zone
            assert k >= self.rules.stop
            assert not any(self.has(zone, larger, UNZEROED) for larger in range(k + 1, 10))
            self.flying.append((zone, pfn, k))

    @precondition(lambda self: self.flying)
    @rule()
    def land(self):
        zone, pfn, k = self.flying.pop(0)
        self.holds.update(dict.fromkeys(range(pfn, pfn + 2**k), 0))
        assert done(self.s, self.b, zone, pfn, k, 4096) >= k
        assert {buddy_pages(self.b)[page] for page in range(pfn, pfn + 2**k)} == {ZEROED}
        self.scrubbed_pages += 2**k

    @invariant()
    def every_page_is_in_one_place(self):
        assert buddy.check(self.b, [(pfn, k) for _, pfn, k in self.flying]) == []
        assert check(self.p, self.b) == []
        free = buddy_pages(self.b)
        kept = {
            page: z
            for (_, _, k, z), heads in list_blocks(self.p, self.b).items()
            for pfn in heads
            for page in range(pfn, pfn + 2**k)
        }
        away = [page for _, pfn, k in self.held + self.flying for page in range(pfn, pfn + 2**k)]
        assert sorted([*free, *kept, *away]) == list(range(len(self.holds)))
        assert pages_on_lists(self.p) == len(kept)
        assert all(self.holds[page] == 0 for page, z in (free | kept).items() if z == ZEROED)

    @invariant()
    def what_scrubbers_did_is_counted(self):
        assert self.s.nr_wakeups.sum() == self.wakeups
        assert set(self.s.awake.nonzero()[0].tolist()) == self.awake
        assert self.s.zeroed_bytes.sum() == 4096 * self.scrubbed_pages


class DeepPercpuMachine(PercpuMachine):
    pass


def test_the_orders_drawn_have_lists_and_have_not():
    assert [k for k in (0, 1, 2, 3, 5, 9) if list_of(k, UNZEROED) == NO_LIST] == [5]


TestPercpu = PercpuMachine.TestCase
TestPercpu.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestPercpuDeep = pytest.mark.slow(DeepPercpuMachine.TestCase)
TestPercpuDeep.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
