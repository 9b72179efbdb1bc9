"""Buddy lists under any sequence of operations; the reference is sets of pages, and what each page holds."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, check, free_block, make_buddy
from firsttouch.mm.scrub import give, take

GARBAGE = -1  # what memory holds before anyone wrote it


class Memory:
    """Which class each free page is in, and what every page holds: 0 or a stamp."""

    def __init__(self, zones, max_order, zeroed):
        ends = np.cumsum(zones).tolist()
        self.zones = [range(end - pages, end) for pages, end in zip(zones, ends, strict=True)]
        self.max_order = max_order
        self.free = dict.fromkeys(range(ends[-1]), ZEROED if zeroed else UNZEROED)
        self.holds = dict.fromkeys(range(ends[-1]), 0 if zeroed else GARBAGE)
        self.stamp = 0

    def is_free(self, zone, pfn, k, z):
        """Whether the naturally aligned block of 2**k pages around `pfn` is free, and all of one class."""
        start = pfn // 2**k * 2**k
        return all(page in self.zones[zone] and self.free.get(page) == z for page in range(start, start + 2**k))

    def has(self, zone, k, z):
        """Buddies of one class are merged, so an aligned run of free pages is a block or lies in one."""
        return k <= self.max_order and any(self.is_free(zone, pfn, k, z) for pfn in self.zones[zone] if pfn % 2**k == 0)

    def leave(self, zone, pfn, k, z):
        assert pfn % 2**k == 0
        assert self.is_free(zone, pfn, k, z)
        for page in range(pfn, pfn + 2**k):
            del self.free[page]
        if z == ZEROED:
            assert all(self.holds[page] == 0 for page in range(pfn, pfn + 2**k))

    def enter(self, zone, pfn, k, z):
        """Returns the order of the block it must be part of now."""
        for page in range(pfn, pfn + 2**k):
            assert page not in self.free
            assert self.holds[page] == 0 or z == UNZEROED
            self.free[page] = z
        while k < self.max_order and self.is_free(zone, pfn, k + 1, z):
            k += 1
        return k

    def write(self, pfn, k):
        self.stamp += 1
        self.holds.update(dict.fromkeys(range(pfn, pfn + 2**k), self.stamp))

    def zero(self, pfn, k):
        self.holds.update(dict.fromkeys(range(pfn, pfn + 2**k), 0))


def buddy_pages(b):
    """{page: class} of what is on the lists."""
    return {
        page: int(b.zeroed[pfn])
        for pfn in np.flatnonzero(b.order).tolist()
        for page in range(pfn, pfn + (1 << (int(b.order[pfn]) - 1)))
    }


class BuddyMachine(RuleBasedStateMachine):
    @initialize(
        zones=st.lists(st.integers(1, 5) | st.integers(1, 70), min_size=1, max_size=3),
        max_order=st.integers(0, 6),
        zeroed=st.booleans(),
    )
    def boot(self, zones, max_order, zeroed):
        self.b = make_buddy(zones, max_order, zeroed)
        self.memory = Memory(zones, max_order, zeroed)
        self.held = []  # (zone, pfn, k) in use
        self.flying = []  # (zone, pfn, k) being scrubbed

    @rule(zone=st.integers(0, 2), k=st.integers(0, 6), z=st.sampled_from((UNZEROED, ZEROED)), writes=st.booleans())
    def alloc(self, zone, k, z, writes):
        zone, k = zone % len(self.memory.zones), min(k, self.memory.max_order)
        possible = self.memory.has(zone, k, z)
        pfn = alloc_block(self.b, zone, k, z)
        assert (pfn != NO_PFN) == possible
        if pfn != NO_PFN:
            self.memory.leave(zone, pfn, k, z)
            self.held.append((zone, pfn, k))
            if writes:
                self.memory.write(pfn, k)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), zeroes=st.booleans())
    def free(self, data, zeroes):
        zone, pfn, k = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if zeroes:
            self.memory.zero(pfn, k)
        z = ZEROED if zeroes else UNZEROED
        assert free_block(self.b, zone, pfn, k, z) == self.memory.enter(zone, pfn, k, z)

    @precondition(lambda self: any(k for _, _, k in self.held))
    @rule(data=st.data())
    def split(self, data):
        """The owner of a block may give its halves back one by one."""
        zone, pfn, k = data.draw(st.sampled_from([block for block in self.held if block[2]]))
        self.held.remove((zone, pfn, k))
        self.held += [(zone, pfn, k - 1), (zone, pfn + 2 ** (k - 1), k - 1)]

    @rule(zone=st.integers(0, 2), stop_order=st.integers(0, 7))
    def scrub(self, zone, stop_order):
        zone = zone % len(self.memory.zones)
        orders = [k for k in range(stop_order, self.memory.max_order + 1) if self.memory.has(zone, k, UNZEROED)]
        pfn, k = take(self.b, zone, stop_order)
        assert (pfn != NO_PFN) == bool(orders)
        if orders:
            assert k == max(orders)
            self.memory.leave(zone, pfn, k, UNZEROED)
            self.flying.append((zone, pfn, k))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def land(self, data):
        zone, pfn, k = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.memory.zero(pfn, k)
        assert give(self.b, zone, pfn, k) == self.memory.enter(zone, pfn, k, ZEROED)

    @invariant()
    def every_page_is_in_one_place(self):
        assert check(self.b, [(pfn, k) for _, pfn, k in self.flying]) == []
        assert buddy_pages(self.b) == self.memory.free
        away = [page for _, pfn, k in self.held + self.flying for page in range(pfn, pfn + 2**k)]
        assert sorted([*self.memory.free, *away]) == list(range(len(self.memory.holds)))


class DeepBuddyMachine(BuddyMachine):
    pass


TestBuddy = BuddyMachine.TestCase
TestBuddy.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestBuddyDeep = pytest.mark.slow(DeepBuddyMachine.TestCase)
TestBuddyDeep.settings = settings(max_examples=600, stateful_step_count=80, deadline=None)
