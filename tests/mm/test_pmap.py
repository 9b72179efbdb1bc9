"""Page tables: what each operation does to entries, folios and counts; and that `check` sees what is wrong."""

import numpy as np
import pytest

from firsttouch._packed import packed
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.pmap import (
    ANON_RO,
    ANON_RW,
    COLD,
    FILE_RO,
    FREE_SLOTS,
    FRESH,
    HUGE,
    MAPPED_PAGES,
    NEAR,
    NO_SLOT,
    NOT_HUGE,
    PEAK_PAGES,
    SLOTS_FULL,
    STATE,
    TOUCHED,
    UNTOUCHED_PAGES,
    WRITTEN,
    all_none,
    check,
    clear_entry,
    copy_entry,
    find_slot,
    fork_tables,
    make_pmap,
    map_block,
    map_pfnless,
    mark_touched,
    move_entry,
    need_slot,
    release_slot,
)


@pytest.fixture
def pm():
    """Address space 0: two regions, 1: three; four slots."""
    return make_pmap(np.array([2, 3]), 4, 2048)


def test_slots_go_to_regions_when_needed_and_come_back(pm):
    p = packed(pm)
    assert find_slot(p, 0, 700) == NO_SLOT
    slot = need_slot(p, 0, 700)
    assert need_slot(p, 0, 512) == slot == find_slot(p, 0, 1023)
    others = {need_slot(p, 1, page) for page in (0, 600, 1100)}
    assert len(others | {slot}) == 4
    assert pm.counts[FREE_SLOTS] == 0 and check(pm) == []
    assert need_slot(p, 0, 0) == NO_SLOT and pm.counts[SLOTS_FULL] == 1
    release_slot(p, 0, 1)
    assert need_slot(p, 0, 0) == slot


def test_a_block_is_mapped_and_goes_page_by_page(pm):
    p = packed(pm)
    slot = need_slot(p, 0, 0)
    base = slot * 512
    map_block(p, 0, slot, base + 8, 64, 3, ANON_RW)
    assert pm.pfn[base + 8 : base + 16].tolist() == list(range(64, 72))
    assert (pm.refs[64], pm.nr_mapped[slot], pm.counts[MAPPED_PAGES]) == (8, 8, 8)
    assert all_none(p, base, 8) and not all_none(p, base, 9) and all_none(p, base + 16, 496)
    mark_touched(p, 0, base + 8)
    mark_touched(p, 0, base + 8)
    assert pm.touched[0] == 1
    assert check(pm) == []
    for page in range(9, 16):
        assert clear_entry(p, 0, slot, base + page) == NO_PFN
    assert (pm.counts[MAPPED_PAGES], pm.counts[UNTOUCHED_PAGES], pm.refs[64]) == (8, 7, 1)
    assert clear_entry(p, 0, slot, base + 8) == 64  # the last page: the folio is free
    assert (pm.counts[MAPPED_PAGES], pm.counts[UNTOUCHED_PAGES], pm.counts[PEAK_PAGES]) == (0, 7, 8)
    assert (pm.touched[0], pm.nr_mapped[slot]) == (0, 0)
    assert check(pm) == []


def test_pages_without_memory_of_their_own_count_for_nothing_but_the_entry(pm):
    p = packed(pm)
    slot = need_slot(p, 0, 0)
    map_pfnless(p, slot, slot * 512 + 3, FILE_RO)
    assert (pm.nr_mapped[slot], pm.counts[MAPPED_PAGES]) == (1, 0)
    assert clear_entry(p, 0, slot, slot * 512 + 3) == NO_PFN
    assert (pm.nr_mapped[slot], pm.counts[UNTOUCHED_PAGES]) == (0, 0)


def test_one_page_less_is_no_superpage_any_more(pm):
    p = packed(pm)
    slot = need_slot(p, 0, 0)
    map_block(p, 0, slot, slot * 512, 512, 9, ANON_RW)
    pm.huge[slot] = HUGE
    assert clear_entry(p, 0, slot, slot * 512 + 100) == NO_PFN
    assert pm.huge[slot] == NOT_HUGE


def test_fork_shares_and_protects(pm):
    p = packed(pm)
    slot = need_slot(p, 0, 600)
    base = slot * 512
    map_block(p, 0, slot, base + 4, 4, 2, ANON_RW | COLD)
    map_pfnless(p, slot, base + 9, FILE_RO | NEAR)
    mark_touched(p, 0, base + 4)
    pm.state[base + 4] |= FRESH | WRITTEN
    fork_tables(p, 0, 1)
    child = find_slot(p, 1, 600)
    assert find_slot(p, 1, 0) == NO_SLOT  # nothing there to copy
    assert (pm.state[base + 4 : base + 10] == pm.state[child * 512 + 4 : child * 512 + 10]).all()
    assert pm.state[base + 4] == ANON_RO | COLD | TOUCHED | FRESH | WRITTEN
    assert pm.state[base + 9] == FILE_RO | NEAR
    assert (pm.refs[4], pm.counts[MAPPED_PAGES], pm.nr_mapped[child]) == (8, 4, 5)
    assert pm.touched.tolist() == [1, 1]
    assert check(pm) == []


def test_mremap_moves_an_entry_with_all_that_is_known_of_it(pm):
    p = packed(pm)
    source, target = need_slot(p, 1, 0), need_slot(p, 1, 1024)
    map_block(p, 1, source, source * 512, 0, 0, ANON_RW)
    pm.state[source * 512] |= FRESH | WRITTEN
    pm.huge[source] = pm.huge[target] = HUGE
    move_entry(p, source, source * 512, target, target * 512 + 7)
    assert pm.state[target * 512 + 7] == ANON_RW | FRESH | WRITTEN
    assert pm.state[source * 512] == 0
    assert (pm.nr_mapped[source], pm.nr_mapped[target]) == (0, 1)
    assert (pm.huge[source], pm.huge[target]) == (NOT_HUGE, NOT_HUGE)
    assert check(pm) == []


@pytest.mark.parametrize(
    ("spoil", "number"),
    [
        (lambda pm, base: pm.nr_mapped.__setitem__(base // 512, 3), "P1"),
        (lambda pm, base: pm.pfn.__setitem__(base + 1, NO_PFN), "P2"),
        (lambda pm, base: pm.state.__setitem__(base + 1, FILE_RO), "P2"),
        (lambda pm, base: pm.refs.__setitem__(8, 3), "P3"),
        (lambda pm, base: pm.slot.__setitem__(1, pm.slot[0]), "P4"),
    ],
)
def test_check_tells_which_invariant_is_broken(pm, spoil, number):
    p = packed(pm)
    slot = need_slot(p, 0, 0)
    map_block(p, 0, slot, slot * 512, 8, 2, ANON_RW)
    assert check(pm) == []
    spoil(pm, slot * 512)
    assert [line for line in check(pm) if line.startswith(number)]


def test_an_entry_that_is_copied_keeps_its_state_bits(pm):
    p = packed(pm)
    slot, other = need_slot(p, 0, 0), need_slot(p, 1, 0)
    map_block(p, 0, slot, slot * 512, 8, 0, ANON_RW)
    copy_entry(p, 1, slot * 512, other * 512)
    pm.nr_mapped[other] += 1
    assert pm.state[slot * 512] & STATE == pm.state[other * 512] & STATE == ANON_RO
    assert check(pm) == []
