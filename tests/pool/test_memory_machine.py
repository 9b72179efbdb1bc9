"""The pool's memory against a model that knows what every live byte holds: nothing overlaps, nothing is lost, and a
byte that was to be zero is."""

import pytest
from harness import PAGE, Bare, view
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firsttouch.mm.buddy import NO_PFN
from firsttouch.pool import state as h
from firsttouch.pool.arena import take_cold, take_unfaulted

MIB = 1 << 20
sizes = st.one_of(
    st.integers(1, 3 * PAGE), st.integers(PAGE, 3 * MIB), st.sampled_from([PAGE, 2 * PAGE, MIB, 2 * MIB, 4 * MIB])
)


class MemoryMachine(RuleBasedStateMachine):
    @initialize(nr_mib=st.integers(8, 20), regions=st.integers(1, 3), hot=st.sampled_from([0, MIB]))
    def boot(self, nr_mib, regions, hot):
        self.bare = Bare(nr_mib // 2 * 2 * MIB, regions=regions)
        self.bare.arena.word[h.HOT_BYTES] = hot
        self.bare.arena.word[h.HOT_NS] = 10**12
        self.live = {}  # address -> (bytes, stamp)
        self.stamp = 0

    def teardown(self):
        if hasattr(self, "bare"):
            self.bare.close()

    def fill(self, address, nr_bytes):
        self.stamp = self.stamp % 250 + 1
        for other, (other_bytes, _) in self.live.items():
            assert address + nr_bytes <= other or other + other_bytes <= address
        view(address, nr_bytes)[:] = self.stamp
        self.live[address] = (nr_bytes, self.stamp)

    def intact(self, address, nr_bytes, stamp):
        return bool((view(address, nr_bytes) == stamp).all())

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.live)))

    @rule(nr_bytes=sizes, writes=st.booleans())
    def malloc(self, nr_bytes, writes):
        address = self.bare.malloc(nr_bytes)
        assert address
        assert not self.bare.owns(address) or nr_bytes >= PAGE
        self.fill(address, nr_bytes)

    @rule(nr_bytes=sizes, item_bytes=st.sampled_from([1, 8, 24]))
    def calloc(self, nr_bytes, item_bytes):
        nr_items = -(-nr_bytes // item_bytes)
        address = self.bare.calloc(nr_items, item_bytes)
        assert address
        assert not view(address, nr_items * item_bytes).any()
        self.fill(address, nr_items * item_bytes)

    @rule(nr_bytes=st.sampled_from([2**63 - 1, 2**63 - PAGE, 2**62, -1, -PAGE, -(2**63)]), data=st.data())
    def ask_for_what_nobody_has(self, nr_bytes, data):
        """Sizes beyond 2**63 look negative here."""
        assert self.bare.malloc(nr_bytes) == 0
        assert self.bare.calloc(nr_bytes, 1) == self.bare.calloc(2**31, 2**31) == 0
        if self.live:
            assert self.bare.realloc(self.pick(data), nr_bytes) == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), nr_bytes=sizes)
    def realloc(self, data, nr_bytes):
        address = self.pick(data)
        had_bytes, stamp = self.live.pop(address)
        moved = self.bare.realloc(address, nr_bytes)
        assert moved and self.intact(moved, min(had_bytes, nr_bytes), stamp)
        self.fill(moved, nr_bytes)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), lies=st.integers(0, 1 << 40))
    def free(self, data, lies):
        address = self.pick(data)
        nr_bytes, stamp = self.live.pop(address)
        assert self.intact(address, nr_bytes, stamp)
        self.bare.free(address, lies if self.bare.owns(address) else nr_bytes)  # the size NumPy gives may be wrong

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_while_locked(self, data):
        """The lock is held by another: the block is freed by whoever holds it next."""
        address = self.pick(data)
        nr_bytes, _ = self.live.pop(address)
        self.bare.pool.lock_all(self.bare.ctx)
        self.bare.free(address, nr_bytes)
        blocked = self.bare.malloc(2 * PAGE)
        assert not self.bare.owns(blocked)
        self.bare.free(blocked, 2 * PAGE)
        self.bare.pool.unlock_all(self.bare.ctx)
        for zone in range(len(self.bare.arena.counts)):
            self.bare.scrub(zone)

    @rule(zone=st.integers(0, 2), times=st.integers(1, 4))
    def scrub(self, zone, times):
        for _ in range(times):
            self.bare.scrub(zone % len(self.bare.arena.counts))

    @rule(zone=st.integers(0, 2))
    def populate(self, zone):
        self.bare.populate(zone % len(self.bare.arena.counts))

    @rule(keep=st.sampled_from([0, 2 * MIB]))
    def trim(self, keep):
        self.bare.pool.trim(keep)

    @rule()
    def fork(self):
        self.bare.fork_child()

    @rule(zone=st.integers(0, 2), populates=st.booleans())
    def fork_while_the_scrubber_holds_a_block(self, zone, populates):
        a, packed = self.bare.arena, self.bare.packed
        zone %= len(a.counts)
        if populates:
            pfn, k = take_unfaulted(packed, zone, 5)
        else:
            pfn, k = take_cold(packed, zone, 0, 5, 2**62)
        if pfn == NO_PFN:
            return
        a.word[h.FLYING_PFN], a.word[h.FLYING_ORDER], a.word[h.FLYING_FAULTED] = pfn, k, not populates
        self.bare.fork_child()

    @invariant()
    def all_is_well(self):
        if hasattr(self, "bare"):
            assert self.bare.wrong() == []

    @invariant()
    def live_memory_is_intact(self):
        for address, (nr_bytes, stamp) in getattr(self, "live", {}).items():
            assert self.intact(address, nr_bytes, stamp)

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "bare"):
            stats = self.bare.pool.stats()
            ours = [nr_bytes for address, (nr_bytes, _) in self.live.items() if self.bare.owns(address)]
            assert stats.live_bytes == sum(-(-nr_bytes // PAGE) * PAGE for nr_bytes in ours)
            free_bytes = stats.held_bytes + stats.free_unfaulted_bytes
            assert stats.live_bytes + free_bytes == self.bare.pool.limit_bytes


class DeepMemoryMachine(MemoryMachine):
    pass


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestMemoryDeep = pytest.mark.slow(DeepMemoryMachine.TestCase)
TestMemoryDeep.settings = settings(
    max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
