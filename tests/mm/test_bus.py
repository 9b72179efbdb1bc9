"""Nodes and buses: what zeroing costs by hand, and that it never costs less than alone."""

import msgspec
import numpy as np
from handmade import PAGE_BYTES, machine
from hypothesis import given
from hypothesis import strategies as st

from firsttouch import policy
from firsttouch.machine import Cost
from firsttouch.mm.bus import make_bus, occupy, sweep
from firsttouch.mm.locks import spinning
from firsttouch.mm.simulate import simulate
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
