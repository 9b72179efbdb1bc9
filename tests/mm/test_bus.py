"""Nodes and buses: what zeroing costs by hand, and that it never costs less than alone."""

import msgspec
import numpy as np
from hand_workload import Hand
from handmade import PAGE_BYTES, machine
from hypothesis import given
from hypothesis import strategies as st

from firsttouch import policy
from firsttouch._packed import packed
from firsttouch.machine import Cost
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, free_block
from firsttouch.mm.bus import make_bus, occupy, sweep
from firsttouch.mm.fault import take_block
from firsttouch.mm.kernels import with_parts
from firsttouch.mm.locks import acquire, make_locks, share, spinning
from firsttouch.mm.simulate import other_event, simulate
from firsttouch.mm.world import make_world
from firsttouch.workload.generators import pft

REMOTE_NS, NODE_PAGES = 70, 1024


def of_nodes(nr_nodes, nr_cpus=2, **cost):
    made = machine(nr_cpus=nr_cpus, memory_bytes=nr_nodes * NODE_PAGES * PAGE_BYTES)
    costs = {name: Cost(ns=float(ns)) for name, ns in cost.items()}
    return msgspec.structs.replace(made, nr_nodes=nr_nodes, cost=msgspec.structs.replace(made.cost, **costs))


def writes(nr_pages, threads=1):
    return pft(nr_pages * PAGE_BYTES, threads=threads, stride_bytes=PAGE_BYTES)


def system_ns(workload, on, name="linux-6.18"):
    return simulate(workload, on, policy.load(name)).system_ns


def test_the_second_cpu_waits_for_the_bus():
    bus = make_bus(1)
    assert occupy(bus, 0, 0, 300, 200) == 300  # its own zeroing is slower than the bus
    assert occupy(bus, 0, 50, 300, 200) == 350  # free at 200: 150 + 200
    assert occupy(bus, 0, 1000, 300, 200) == 300  # free long since


def test_a_daemon_and_the_faults_of_its_node_take_turns():
    bus = make_bus(1)
    assert sweep(bus, 0, 0, 1000, 2000) == 2000  # the bus is slower than its stores
    assert occupy(bus, 0, 100, 300, 200) == 400  # every other page is the daemon's
    assert occupy(bus, 0, 2000, 300, 200) == 300  # it has ended
    assert sweep(bus, 0, 2500, 1000, 0) == 1200  # the 200 that the first fault took


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 400), st.integers(0, 400)), max_size=50))
def test_zeroing_is_never_shorter_than_alone_and_the_bus_never_early(blocks):
    bus, now, before = make_bus(2), 0, np.zeros(2, np.int64)
    for gap, zero_ns, bus_ns in blocks:
        now += gap
        assert occupy(bus, 1, now, zero_ns, bus_ns) >= max(zero_ns, bus_ns)  # U2
        assert (bus.free_at_ns >= before).all() and bus.free_at_ns[1] >= now + bus_ns  # U1
        before = bus.free_at_ns.copy()


def test_pages_of_another_node_cost_more_to_zero():
    near, far = of_nodes(2), of_nodes(2, remote_page=REMOTE_NS)
    inside = writes(NODE_PAGES // 2)
    assert system_ns(inside, far) == system_ns(inside, near)
    whole = writes(2 * NODE_PAGES)  # all memory: exactly one node's pages lie far
    assert system_ns(whole, far) == system_ns(whole, near) + NODE_PAGES * REMOTE_NS


def test_two_cpus_on_a_full_bus_are_no_faster_than_the_bus():
    page_ns = 5000
    shared = of_nodes(1, lock_handoff=0, bus_page=page_ns)
    free = of_nodes(1, lock_handoff=0)
    two = writes(512, threads=2)
    wall_ns = simulate(two, shared, policy.load("linux-6.18")).wall_ns
    assert 512 * page_ns <= wall_ns < 1.1 * 512 * page_ns
    assert simulate(two, free, policy.load("linux-6.18")).wall_ns < 0.2 * wall_ns


def test_how_many_spin_solves_the_sum_of_the_turns_ahead():
    for q in range(1, 200):
        assert spinning(q * 700 + q * q * 30 + 1, 700, 30) == 1 + q  # q turns of 700 + 30 q, and a little more


# -- distance of lines, and everything else that takes the bus


def zeroed_far_and_unzeroed_near():
    """A world of two nodes before its first event: all of node 0 unzeroed, all of node 1 zeroed."""
    chosen = policy.load("linux-2.6.10+scrubd-v6")
    world = with_parts(make_world(writes(64), of_nodes(2), chosen, 4), chosen, other_event)
    for pfn in iter(lambda: alloc_block(world.buddy, 0, world.buddy.first.shape[2] - 1, ZEROED), NO_PFN):
        free_block(world.buddy, 0, pfn, 10, UNZEROED)
    assert world.buddy.zero_pages.tolist() == [0, NODE_PAGES]
    return packed(world)


def test_a_local_unzeroed_page_is_taken_before_a_remote_zeroed_one():
    """The zone list decides before the zero state does."""
    world = zeroed_far_and_unzeroed_near()
    for _ in range(NODE_PAGES):
        pfn, z = take_block(world, 0, 0, True)
        assert (pfn < NODE_PAGES, z) == (True, UNZEROED)
    pfn, z = take_block(world, 0, 0, True)  # only when its own node has none left
    assert (pfn >= NODE_PAGES, z) == (True, ZEROED)


def test_lines_of_a_remote_page_cost_more_if_they_are_cold():
    """Zeroed ahead on both nodes: who outgrows the near one fetches 70 ns a line more for the rest."""
    near, far = of_nodes(2), of_nodes(2, remote_line=REMOTE_NS)
    spilled = pft(3 * NODE_PAGES // 2 * PAGE_BYTES, lines=3, stride_bytes=PAGE_BYTES)
    one, two = (simulate(spilled, on, policy.load("linux-6.18+prezero-4k")) for on in (near, far))
    nr_far = (two.user_ns - one.user_ns) / (3 * REMOTE_NS)
    assert nr_far == NODE_PAGES // 2
    assert two.system_ns == one.system_ns
    hot = [simulate(spilled, on, policy.load("linux-6.18")).user_ns for on in (near, far)]
    assert hot[0] == hot[1]  # zeroed in the fault


def test_a_line_that_crosses_nodes_takes_longer():
    locks = make_locks(1, nr_cpus=4, nr_nodes=2, remote_ns=50)
    took = [acquire(locks, 0, 0, cpu, 1000 * i, 10, 20, 0) for i, cpu in enumerate((0, 1, 2, 3, 0, 0))]
    assert took == [10, 30, 80, 30, 80, 10]


def test_a_line_without_a_lock_stays_on_a_node_while_others_wait_there():
    """A turn is 20, and 40 more if it leads to another of two nodes: it does while at most two wait (120), and once in
    half as many turns as wait (q) otherwise, when those take q * 20 + 2 * 40."""
    for waiting_ns, far_ns in ((0, 40), (60, 40), (120, 40), (160, 20), (240, 10), (1680, 1)):
        locks = make_locks(1, nr_cpus=4, nr_nodes=2, remote_ns=40)
        share(packed(locks), 0, 0, 0, 1000, 20, 0)
        locks.free_at_ns[0] = 2000 + waiting_ns
        assert share(packed(locks), 0, 0, 3, 2000, 20, 0) == waiting_ns + 20 + far_ns
        assert locks.free_at_ns[0] == 2000 + waiting_ns + 20 + far_ns
        assert share(packed(locks), 0, 0, 2, 9000, 20, 0) == 20  # of one node


def test_a_lock_goes_to_whoever_asked_first_from_whatever_node():
    locks = make_locks(1, nr_cpus=4, nr_nodes=2, remote_ns=40)
    acquire(locks, 0, 0, 0, 1000, 5000, 20, 0)
    assert acquire(locks, 0, 0, 3, 1000, 10, 20, 0) == 5000 + 20 + 40 + 10


def test_a_node_by_itself_knows_no_distance():
    on = [of_nodes(1, nr_cpus=4, **cost) for cost in ({}, {"remote_page": 70, "remote_line": 70, "remote_handoff": 70})]
    outcomes = [simulate(writes(64, threads=4), machine, policy.load("linux-2.6.10+scrubd-v6")) for machine in on]
    assert outcomes[0] == outcomes[1]


def copies(nr_threads):
    """Each of so many processes writes to the 64 pages of their parent, which it thinks apart: copies."""
    h = Hand([1] * (nr_threads + 1))
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, *range(64))
    for i in range(nr_threads):
        h.write(h.fork(t, mm=i + 1), v, *range(64))
    h.sleep(t, 10**9)
    return h.workload()


def test_copies_take_the_bus_longer_than_zeroing():
    """A copy of 2,000 ns with pages 300 ns apart takes 450 of the bus: four may be under way, and eight may not."""
    slow = {"copy_page": 2000, "lock_handoff": 0}
    alone, limited = (
        [simulate(copies(nr), of_nodes(1, nr_cpus=9, **slow, **bus), policy.load("linux-6.18")).system_ns / nr
         for nr in (1, 8)]
        for bus in ({}, {"bus_page": 300})
    )  # fmt: skip
    assert limited[0] == alone[0]
    assert limited[1] > 1.2 * alone[1]


def test_cold_lines_take_their_part_of_the_bus():
    """All lines of a zeroed page are 64 x 5 ns dearer, and take half of 600 ns of the bus: too long for eight CPUs."""
    for threads, is_slower in ((1, False), (8, True)):
        workload = pft(512 * PAGE_BYTES, threads=threads, lines=64, stride_bytes=PAGE_BYTES)
        plain, limited = (
            simulate(workload, of_nodes(1, 8, line_cold=6, line_hot=1, **bus), policy.load("linux-6.18+prezero-4k"))
            for bus in ({}, {"bus_page": 600})
        )
        assert (limited.user_ns > plain.user_ns) == is_slower


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 400)), min_size=1, max_size=60))
def test_no_more_goes_over_a_bus_than_it_carries(transfers):
    """Whoever asks when: the transfers' time on the bus fits between the first beginning and the last end."""
    bus, now, last_ns, total = make_bus(1), 0, 0, 0
    for gap, ns, bus_ns in transfers:
        now += gap
        last_ns = max(last_ns, now + occupy(bus, 0, now, ns, bus_ns))
        total += bus_ns
    assert last_ns - transfers[0][0] >= total
