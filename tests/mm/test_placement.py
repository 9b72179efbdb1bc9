"""Where new threads start: places by hand, and what sharing a node's bus or memory then comes to."""

import pytest
from handmade import PAGE_BYTES
from test_bus import of_nodes

from firsttouch import policy
from firsttouch.mm.placement import BY_PACK, BY_SPREAD, place_of
from firsttouch.mm.simulate import replay
from firsttouch.workload.generators import pft

PLACES = [  # 8 CPUs on 4 nodes of two; the parent on CPU 2
    (BY_PACK, [2, 3, 4, 5, 6, 7, 0, 1]),
    (BY_SPREAD, [2, 4, 6, 0, 3, 5, 7, 1]),  # nodes 1, 2, 3, 0, and again on their other CPUs
]


@pytest.mark.parametrize(("placement", "places"), PLACES)
def test_places_of_threads(placement, places):
    assert [place_of(placement, nth, 2, 8, 4) for nth in range(8)] == places


def test_fewer_cpus_than_nodes_are_taken_in_turn():
    assert [place_of(BY_SPREAD, nth, 1, 2, 4) for nth in range(4)] == [1, 0, 1, 0]


@pytest.mark.parametrize(("name", "cpus"), [("+pack", {0, 1}), ("+spread", {0, 2})])
def test_two_threads_start_where_the_policy_says(name, cpus):
    workload = pft(512 * PAGE_BYTES, reps=2, threads=2, stride_bytes=PAGE_BYTES)
    world = replay(workload, of_nodes(4, nr_cpus=8, bus_page=400), policy.load(f"linux-2.6.10{name}"))
    workers = [t for t, parent in enumerate(workload.threads.parent) if parent > 0]
    assert {int(world.sched.last_cpu[t]) for t in workers} == cpus
