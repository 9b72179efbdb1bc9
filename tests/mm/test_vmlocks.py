"""Locks that are held across steps: hand-derived times, and equality with a twin on random scripts of CPUs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vmlocks_twin import Twin

from firsttouch._jit import state_kernel
from firsttouch._packed import packed
from firsttouch.mm.sched import BUSY, NEVER_NS, make_sched
from firsttouch.mm.vmlocks import (
    CLASSES,
    MAP,
    NR_CLASSES,
    OBJECT,
    PV_LIST,
    READ,
    WRITE,
    check,
    count_anew,
    make_vmlocks,
    release,
    take,
    upgrade,
)

HANDOFF, REMOTE = 100, 37


@state_kernel
def ask(v, s, kind, index, cpu, wish):
    take(v, s, kind, index, cpu, wish)


@state_kernel
def let_go(v, s, kind, index, cpu):
    release(v, s, kind, index, cpu)


@state_kernel
def try_upgrade(v, s, kind, index, cpu):
    return upgrade(v, s, kind, index, cpu)


class Locks:
    """Some CPUs and locks: `take(cpu, kind, index, wish)` and so on, with times."""

    def __init__(self, nr_cpus=3, nr_locks=4, per_line=1, handoff=HANDOFF, waiter=0, nr_nodes=1, remote=0):
        counts = [nr_locks] * NR_CLASSES, [per_line] * NR_CLASSES
        self.v = make_vmlocks(*counts, nr_cpus, handoff, waiter, nr_nodes, remote)
        self.s = make_sched(nr_cpus, nr_cpus, np.zeros(nr_cpus, np.int64))
        self.s.activity[:] = BUSY
        self.pv, self.ps = packed(self.v), packed(self.s)

    def take(self, cpu, kind, index, wish, at_ns=None):
        if at_ns is not None:
            self.s.clock_ns[cpu] = at_ns
        ask(self.pv, self.ps, kind, index, cpu, wish)
        return self.clock(cpu)

    def release(self, cpu, kind, index, at_ns=None):
        if at_ns is not None:
            self.s.clock_ns[cpu] = at_ns
        let_go(self.pv, self.ps, kind, index, cpu)

    def clock(self, cpu):
        return int(self.s.clock_ns[cpu])


def test_a_hold_of_known_length_delays_who_comes_later():
    """A 0..50. B asks at 10: waits 40, hand-off 100, holds 20: 170. A asks again at 60: waits 110, hand-off, 5: 275."""
    locks = Locks()
    assert locks.take(0, PV_LIST, 1, 50) == 50
    assert locks.take(1, PV_LIST, 1, 20, at_ns=10) == 170
    assert locks.take(0, PV_LIST, 1, 5, at_ns=60) == 275
    assert locks.v.wait_ns[PV_LIST] == 140 + 210
    assert locks.v.max_wait_ns[PV_LIST] == 210
    assert locks.v.hold_ns[PV_LIST] == 75
    assert locks.v.nr_acquired[PV_LIST] == 3
    assert locks.v.nr_waited[PV_LIST] == 2
    assert locks.v.contended_ns[PV_LIST] == 140 + 210
    assert locks.v.charged_ns[0] == 350 + 75
    assert check(locks.v, locks.s) == []


def test_an_open_hold_makes_others_queue_until_its_release():
    """A from 0 to 500. B (a hold of 30) from 10, C (a writer) from 20: B 500 + 100 + 30, C 630 + 100."""
    locks = Locks()
    assert locks.take(0, OBJECT, 2, WRITE) == 0
    assert locks.take(1, OBJECT, 2, 30, at_ns=10) == NEVER_NS
    assert locks.take(2, OBJECT, 2, WRITE, at_ns=20) == NEVER_NS
    assert locks.v.held.tolist() == [1, 0, 0]
    assert check(locks.v, locks.s) == []
    locks.release(0, OBJECT, 2, at_ns=500)
    assert [locks.clock(cpu) for cpu in range(3)] == [500, 630, 730]
    assert locks.v.granted[0] == 1
    assert locks.v.held.tolist() == [0, 0, 1]
    locks.release(2, OBJECT, 2, at_ns=800)
    assert locks.v.hold_ns[OBJECT] == 500 + 30 + 70
    assert check(locks.v, locks.s) == []


def test_readers_share_and_a_writer_waits_for_all_of_them():
    """A reads from 0, B from 5 + 100. C would write from 7 on; D, a reader behind it, waits for it as well.

    A leaves at 200, its line having travelled: 300. B leaves at 310, + 100: C writes from 410 + 100.
    """
    locks = Locks(nr_cpus=4)
    assert locks.take(0, MAP, 0, READ) == 0
    assert locks.take(1, MAP, 0, READ, at_ns=5) == 105
    assert locks.take(2, MAP, 0, WRITE, at_ns=7) == NEVER_NS
    assert locks.take(3, MAP, 0, READ, at_ns=9) == NEVER_NS
    locks.release(0, MAP, 0, at_ns=200)
    assert locks.clock(0) == 300
    assert locks.clock(2) == NEVER_NS
    locks.release(1, MAP, 0, at_ns=310)
    assert locks.clock(2) == 510
    assert locks.clock(3) == NEVER_NS
    locks.release(2, MAP, 0, at_ns=600)
    assert locks.clock(3) == 700
    locks.release(3, MAP, 0)
    assert locks.v.hold_ns[MAP] == 300 + 305 + 90 + 0
    assert check(locks.v, locks.s) == []


def test_counting_anew_keeps_what_is_open():
    """A writes and B reads from 0 on; counting begins at 100; A leaves at 130, B at 170."""
    locks = Locks()
    locks.take(0, OBJECT, 0, WRITE)
    locks.take(1, OBJECT, 1, READ)
    count_anew(locks.v, 100)
    locks.release(0, OBJECT, 0, at_ns=130)
    locks.release(1, OBJECT, 1, at_ns=170)
    assert locks.v.hold_ns[OBJECT] == 30 + 70
    assert locks.v.nr_acquired.sum() == 0
    assert check(locks.v, locks.s) == []


def test_only_a_single_reader_becomes_the_writer():
    locks = Locks()
    locks.take(0, OBJECT, 0, READ)
    locks.take(1, OBJECT, 0, READ)
    assert not try_upgrade(locks.pv, locks.ps, OBJECT, 0, 0)
    locks.release(1, OBJECT, 0, at_ns=150)
    assert try_upgrade(locks.pv, locks.ps, OBJECT, 0, 0)
    assert locks.clock(0) == 100  # the line was the other's
    assert locks.take(1, OBJECT, 0, READ) == NEVER_NS
    locks.release(0, OBJECT, 0, at_ns=1000)
    assert locks.clock(1) == 1100


def test_two_locks_on_a_line_disturb_each_other_and_nobody_waits():
    locks = Locks(per_line=2)
    assert locks.take(0, PV_LIST, 0, 10) == 10  # lines: 0 1 | 2 3
    assert locks.take(1, PV_LIST, 1, 10) == 110
    assert locks.take(2, PV_LIST, 2, 10) == 10
    assert locks.v.nr_waited[PV_LIST] == 0
    assert locks.v.wait_ns[PV_LIST] == 100
    assert locks.v.contended_ns[PV_LIST] == 0


def test_each_cpu_that_spins_makes_the_hand_off_slower():
    """Three CPUs wait for a writer who leaves at 1000, 7 ns each: 1000 + 100 + 3 * 7, then + 10 + 100 + 2 * 7, ..."""
    locks = Locks(nr_cpus=4, waiter=7)
    locks.take(0, OBJECT, 0, WRITE)
    for cpu in range(1, 4):
        locks.take(cpu, OBJECT, 0, WRITE, at_ns=990 + cpu)
    locks.release(0, OBJECT, 0, at_ns=1000)
    first = locks.clock(1)
    assert first == 1000 + 100 + 3 * 7
    locks.release(1, OBJECT, 0)
    assert locks.clock(2) == first + 100 + 7 * 2


def test_a_line_from_another_node_takes_longer():
    """CPUs 0, 1 | 2, 3: from 0 to 1 it takes 100, from 1 to 2 37 more."""
    locks = Locks(nr_cpus=4, nr_nodes=2, remote=REMOTE)
    locks.take(0, PV_LIST, 0, 5)
    assert locks.take(1, PV_LIST, 0, 5, at_ns=1000) == 1000 + 100 + 5
    assert locks.take(2, PV_LIST, 0, 5, at_ns=2000) == 2000 + 137 + 5
    assert locks.take(3, PV_LIST, 0, 5, at_ns=3000) == 3000 + 100 + 5


@st.composite
def scripts(draw):
    nr_cpus = draw(st.integers(1, 5))
    out = []
    for _ in range(nr_cpus):
        script = []
        for _ in range(draw(st.integers(0, 6))):
            script.append(("think", draw(st.integers(0, 300))))
            held = []
            for lock in sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))):
                what = draw(st.sampled_from(["hold", "write", "read"]))
                script.append((what, lock, draw(st.integers(1, 90))) if what == "hold" else (what, lock))
                if what != "hold":
                    held.append(lock)
                script.append(("think", draw(st.integers(0, 60))))
            script += [("release", lock) for lock in draw(st.permutations(held))]
        out.append(script)
    return out


PLACES = [(PV_LIST, 0), (PV_LIST, 1), (PV_LIST, 2), (OBJECT, 0), (OBJECT, 1), (MAP, 0)]


@settings(max_examples=300, deadline=None)
@given(scripts(), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_cpus_wait_as_in_the_twin(scripts, per_line, nr_nodes):
    locks = Locks(nr_cpus=len(scripts), per_line=per_line, nr_nodes=nr_nodes, remote=REMOTE)
    at = [0] * len(scripts)
    while True:
        ready = [c for c in range(len(scripts)) if at[c] < len(scripts[c]) and locks.clock(c) != NEVER_NS]
        if not ready:
            break
        cpu = min(ready, key=lambda c: (locks.clock(c), c))
        what, number, *ns = scripts[cpu][at[cpu]]
        at[cpu] += 1
        if what == "think":
            locks.s.clock_ns[cpu] += number
        elif what == "release":
            locks.release(cpu, *PLACES[number])
        else:
            locks.take(cpu, *PLACES[number], {"write": WRITE, "read": READ}.get(what, ns[0] if ns else 0))
        assert check(locks.v, locks.s) == []
    lines = {i: (kind, index // per_line) for i, (kind, index) in enumerate(PLACES)}
    nodes = {1: [0], 2: [0, 1], 3: [0, 0, 1], 4: [0, 0, 1, 1], 5: [0, 0, 0, 1, 1]}[len(scripts)]
    twin = Twin(scripts, lines, HANDOFF, nodes if nr_nodes == 2 else [0] * len(scripts), REMOTE)
    twin.run()
    assert [locks.clock(cpu) for cpu in range(len(scripts))] == twin.clock
    for kind in range(len(CLASSES)):
        waits = [ns for lock, ns in twin.waits if PLACES[lock][0] == kind]
        assert locks.v.wait_ns[kind] == sum(waits)
        assert locks.v.hold_ns[kind] == sum(twin.holds[i] for i, place in enumerate(PLACES) if place[0] == kind)
    assert not locks.v.held.any()
    assert not locks.v.open.any()


@pytest.mark.parametrize("kind", range(NR_CLASSES))
def test_on_one_cpu_no_lock_is_waited_for(kind):
    locks = Locks(nr_cpus=1)
    for wish in (30, WRITE, READ):
        locks.take(0, kind, 1, wish)
        if wish < 0:
            locks.release(0, kind, 1)
    assert locks.v.wait_ns.sum() == locks.v.nr_waited.sum() == 0
