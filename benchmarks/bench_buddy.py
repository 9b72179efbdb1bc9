"""What the model of physical memory costs: nanoseconds for one allocation with its free, in compiled loops."""

import numpy as np
import pytest

from firsttouch._jit import state_kernel
from firsttouch.mm.buddy import UNZEROED, ZEROED, alloc_block, free_block, make_buddy
from firsttouch.mm.percpu import make_percpu, pcp_alloc, pcp_free
from firsttouch.mm.scrub import give, take

PAGES = 6_000_000
NR_HELD = 10_000
NR_ROUNDS = 20


@state_kernel
def percpu_waves(p, b, held, nr_rounds):
    """Allocate `held` pages one by one, free them all, again and again."""
    for _ in range(nr_rounds):
        for i in range(len(held)):
            held[i], _, _ = pcp_alloc(p, b, 0, 0, 0, True)
        for i in range(len(held)):
            pcp_free(p, b, 0, 0, held[i], 0, UNZEROED)


@state_kernel
def percpu_pairs(p, b, held, nr_rounds):
    """Allocate a page and free it at once."""
    for _ in range(nr_rounds * len(held)):
        pfn, _, _ = pcp_alloc(p, b, 0, 0, 0, True)
        pcp_free(p, b, 0, 0, pfn, 0, UNZEROED)


@state_kernel
def buddy_waves(b, held, nr_rounds):
    """`percpu_waves` without the per-CPU lists: every page splits and merges."""
    for _ in range(nr_rounds):
        for i in range(len(held)):
            held[i] = alloc_block(b, 0, 0, UNZEROED)
        for i in range(len(held)):
            free_block(b, 0, held[i], 0, UNZEROED)


@state_kernel
def scrub_all(b):
    """Zero every block there is; returns how many."""
    nr_blocks = 0
    while b.zero_pages[0] < b.free_pages[0]:
        pfn, k = take(b, 0, 0)
        give(b, 0, pfn, k)
        nr_blocks += 1
    return nr_blocks


@pytest.mark.parametrize("loop", [percpu_waves, percpu_pairs], ids=lambda loop: loop.__name__)
def test_percpu_order_0(benchmark, loop):
    b = make_buddy([PAGES])
    p = make_percpu(b, 2, has_zeroed=True)
    held = np.zeros(NR_HELD, np.int64)
    loop(p, b, held, 1)
    benchmark(loop, p, b, held, NR_ROUNDS)
    benchmark.extra_info["ns_per_pair"] = benchmark.stats.stats.median * 1e9 / (NR_ROUNDS * NR_HELD)


def test_buddy_order_0(benchmark):
    b = make_buddy([PAGES])
    held = np.zeros(NR_HELD, np.int64)
    buddy_waves(b, held, 1)
    benchmark(buddy_waves, b, held, NR_ROUNDS)
    benchmark.extra_info["ns_per_pair"] = benchmark.stats.stats.median * 1e9 / (NR_ROUNDS * NR_HELD)


def test_make_buddy(benchmark):
    """6 million pages, 24 GB of 4 KiB ones: the arrays are reserved, not touched."""
    make_buddy([64], zeroed=True)
    benchmark(make_buddy, [PAGES])


def test_scrub(benchmark):
    b = make_buddy([PAGES])
    nr_blocks = scrub_all(b)
    assert b.nr_free[0, ZEROED].sum() == nr_blocks

    def fresh():
        return (make_buddy([PAGES]),), {}

    benchmark.pedantic(scrub_all, setup=fresh, rounds=10)
