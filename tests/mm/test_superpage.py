"""Which orders a mapping may use, and which of them a fault takes: integers by hand."""

import numpy as np
import pytest
from hand_workload import Hand, linux, small_machine

from firsttouch import policy
from firsttouch._packed import packed
from firsttouch.mm.pmap import ANON_RW, FILE_RO, make_pmap, map_block, map_pfnless, need_slot
from firsttouch.mm.simulate import simulate
from firsttouch.mm.superpage import allowed_orders, choose_order, next_order, superpage_fits
from firsttouch.workload import ADVISED, ANON, NOHUGE, SHARED, STACK, WRITABLE

RW = ANON | WRITABLE
ALL = sum(1 << k for k in range(2, 10))

SWITCHES = [  # thp, mthp_always, mthp_madvise, orders of a plain mapping, of an advised one
    ("never", [], [], [], []),
    ("madvise", [], [], [], [9]),
    ("always", [], [], [9], [9]),
    ("never", [4], [], [4], [4]),
    ("never", [], [4], [], [4]),
    ("madvise", [2, 8], [4], [2, 8], [2, 4, 8, 9]),
    ("always", [4], [3], [4, 9], [3, 4, 9]),
]


@pytest.mark.parametrize(("thp", "always", "madvise", "plain", "advised"), SWITCHES)
def test_switches_and_advice(thp, always, madvise, plain, advised):
    rules = policy.Superpage(thp=thp, mthp_always=always, mthp_madvise=madvise)
    flags = {
        RW: plain,
        RW | ADVISED: advised,
        RW | STACK: plain,
        ANON: plain,  # protection does not matter: a mapping that may not be written has no write fault
        RW | NOHUGE: [],
        RW | NOHUGE | ADVISED: [],
        RW | SHARED | ADVISED: [],
        WRITABLE | ADVISED: [],  # a file
    }
    orders = allowed_orders(rules, np.array(list(flags), np.int32))
    assert orders.tolist() == [sum(1 << k for k in want) for want in flags.values()]


CHOICES = [  # mapping, page, orders, pages mapped before -> order
    # alone in an aligned region: the highest allowed
    ((0, 512), 100, ALL, [], 9),
    ((0, 512), 100, 1 << 4, [], 4),
    ((0, 512), 100, 0, [], 0),
    # 511 pages hold no aligned 512; page 100 is in [0, 256), page 300 in [256, 512), which does not fit
    ((0, 511), 100, 1 << 9, [], 0),
    ((0, 511), 100, ALL, [], 8),
    ((0, 511), 300, ALL, [], 7),  # [256, 384)
    ((0, 511), 510, ALL, [], 0),  # [508, 512) does not fit
    ((0, 511), 507, ALL, [], 2),  # [504, 508); [504, 512) does not fit
    # the mapping begins inside the block
    ((1, 512), 3, ALL, [], 0),  # [0, 4) does not fit
    ((1, 512), 4, ALL, [], 2),  # [4, 8); [0, 8) does not
    ((4, 512), 4, ALL, [], 2),
    ((8, 1024), 16, ALL, [], 4),  # [16, 32); [0, 32) does not
    ((8, 1024), 511, ALL, [], 8),  # [256, 512)
    ((8, 1024), 512, ALL, [], 9),  # the second region is whole
    ((500, 1024), 1023, ALL, [], 9),
    # neighbours: the highest order whose block maps nothing
    ((0, 512), 100, ALL, [511], 8),  # 9 needs an empty region; [0, 256) is empty
    ((0, 512), 100, ALL, [0], 6),  # [0, 256), [0, 128) hold page 0; [64, 128) does not
    ((0, 512), 100, ALL, [101], 0),  # [100, 104) holds it
    ((0, 512), 100, ALL, [104], 3),  # [96, 104) is free of page 104, [96, 112) is not
    ((0, 512), 100, 1 << 4, [111], 0),  # [96, 112) holds it, and no lower order is allowed
    ((0, 512), 100, 1 << 4, [112], 4),
    ((0, 512), 100, 1 << 9, [0], 0),
]


def tables(*mapped, state=ANON_RW):
    pm = make_pmap(np.array([2]), 2, 4096)
    slots = [need_slot(packed(pm), 0, region * 512) for region in range(2)]
    for page in mapped:
        entry = slots[page // 512] * 512 + page % 512
        if state == ANON_RW:
            map_block(packed(pm), 0, slots[page // 512], entry, page, 0, state)
        else:
            map_pfnless(packed(pm), slots[page // 512], entry, state)
    return pm, slots


@pytest.mark.parametrize(("vma", "page", "orders", "mapped", "order"), CHOICES)
def test_order_of_a_fault(vma, page, orders, mapped, order):
    for state in (ANON_RW, FILE_RO):  # whatever is mapped there
        pm, slots = tables(*mapped, state=state)
        assert choose_order(packed(pm), slots[page // 512], *vma, page, orders) == order
        assert superpage_fits(packed(pm), slots[page // 512], *vma, page, orders) == (order == 9)


def test_lower_orders_to_fall_back_on():
    orders = 1 << 9 | 1 << 4 | 1 << 2
    assert [next_order(orders, k) for k in (9, 8, 5, 4, 3, 2, 1)] == [4, 4, 4, 2, 2, 0, 0]
    assert next_order(0, 9) == 0
    assert next_order(1 << 9, 9) == 0


WHOLE = [  # pages of the mapping, first page, policy -> faults when every page is written in order
    (511, 0, "+thp", 511),  # as measured on 6.18
    (512, 0, "+thp", 1),
    (1024, 0, "+thp", 2),
    (1023, 0, "+thp", 1 + 511),
    (1024, 1, "+thp", 511 + 1 + 1),  # pages 1..511, one superpage, page 1024
    (512, 0, "+mthp-64k", 32),
    (511, 0, "+mthp-64k", 31 + 15),  # the last block of 16 does not fit: 15 single pages
    (512, 8, "+mthp-64k", 8 + 31 + 8),
    (512, 0, "", 512),
    # pages 8..15 by [8, 16): order 3 is not allowed, so with 16k and 64k: 2 blocks of 4, then 16s, then 2 of 4
    (512, 8, "+mthp-16k+mthp-64k", 2 + 31 + 2),
    (1024, 0, "+thp+mthp-1024k", 2),
    (768, 0, "+thp+mthp-1024k", 1 + 1),
]


@pytest.mark.parametrize(("nr", "first", "diffs", "faults"), WHOLE)
def test_faults_left_when_all_is_written(nr, first, diffs, faults):
    h = Hand([3])
    v = h.vma(first, first + nr)
    h.write(h.thread(), v, *range(first, first + nr))
    outcome = simulate(h.workload(), small_machine(), linux(diffs))
    assert outcome.faults == faults
    assert outcome.peak_bytes == nr * 4096
    assert outcome.untouched_bytes == 0


ADVICE = [  # policy, flags -> faults for 512 aligned pages
    ("+thp-madvise", RW, 512),
    ("+thp-madvise", RW | ADVISED, 1),
    ("+thp", RW | NOHUGE, 512),
    ("+thp+mthp-64k", RW | NOHUGE, 512),
    ("+mthp-64k", RW | STACK, 32),
]


@pytest.mark.parametrize(("diffs", "flags", "faults"), ADVICE)
def test_advice(diffs, flags, faults):
    h = Hand()
    h.write(h.thread(), h.vma(0, 512, flags), *range(512))
    assert simulate(h.workload(), small_machine(), linux(diffs)).faults == faults


def test_a_block_is_paid_for_even_if_one_page_is_used():
    h = Hand()
    h.write(h.thread(), h.vma(0, 512), 17)
    outcome = simulate(h.workload(), small_machine(), linux("+mthp-64k"))
    assert (outcome.faults, outcome.peak_bytes, outcome.untouched_bytes) == (1, 16 * 4096, 15 * 4096)
    outcome = simulate(h.workload(), small_machine(), linux("+thp"))
    assert (outcome.faults, outcome.peak_bytes, outcome.untouched_bytes) == (1, 512 * 4096, 511 * 4096)
    assert outcome.faults_by_kind["huge"] == 1
