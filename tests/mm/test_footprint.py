"""What the model's state takes in memory: so many bytes for each physical page, whatever the program does to it."""

import msgspec
import numpy as np
from hand_workload import small_machine

from firsttouch import policy
from firsttouch.mm.world import make_world
from firsttouch.workload.generators import pft

MIB = 1 << 20
LIMIT_BYTES = 24


def nr_bytes(state):
    """Of all arrays in a tuple of tuples, but the workload's own."""
    if isinstance(state, np.ndarray):
        return state.nbytes
    fields = getattr(state, "_fields", ())
    return sum(nr_bytes(getattr(state, name)) for name in fields if name not in ("events", "threads", "vmas"))


def state_bytes(memory_bytes, name):
    """With page tables for all of memory."""
    here = msgspec.structs.replace(small_machine(2), memory_bytes=memory_bytes)
    regions = memory_bytes // (2 * MIB)
    return nr_bytes(make_world(pft(memory_bytes), here, policy.load(name), regions))


def test_state_takes_less_than_24_bytes_a_page_with_its_page_tables():
    for name in ("linux-6.18", "linux-6.18+thp", "linux-6.18+prezero-4k", "linux-2.6.10+scrubd-v6", "hawkeye"):
        more = state_bytes(512 * MIB, name) - state_bytes(256 * MIB, name)
        # next, prev 4 + 4, order, zeroed 1 + 1, folio order 1, refs 4; an entry's pfn 4, state 1. Regions add a little.
        assert 20 <= more / (256 * MIB / 4096) < 21 < LIMIT_BYTES, name


def test_state_does_not_grow_with_the_number_of_faults():
    here = small_machine(2)
    few, many = (make_world(pft(64 * MIB, reps=reps), here, policy.load("linux-6.18"), 64) for reps in (1, 16))
    # Each repetition is a thread of its own: its row in the tables of threads is all that is added.
    assert 0 <= nr_bytes(many) - nr_bytes(few) < 15 * 512
