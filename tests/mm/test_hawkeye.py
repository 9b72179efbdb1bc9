"""HawkEye: zeroing ahead at a limited rate, and bloat recovery. The order of promotion is in test_khugepaged."""

import msgspec
import numpy as np
import pytest
from hand_workload import Hand, small_machine
from test_khugepaged import SECOND_NS, whole

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, make_buddy
from firsttouch.mm.pmap import NOT_HUGE, STATE, TOUCHED, ZERO_PAGE
from firsttouch.mm.scrub import make_scrub, next_block, scrub_rules, wake_after_free
from firsttouch.mm.simulate import outcome_of, replay, simulate
from firsttouch.units import PMD_PAGES

MIB = 1 << 20


def machine_of(nr_bytes, nr_cpus=1):
    return msgspec.structs.replace(small_machine(nr_cpus), memory_bytes=nr_bytes)


def hawkeye(**superpage):
    chosen = policy.load("hawkeye")
    return msgspec.structs.replace(chosen, superpage=msgspec.structs.replace(chosen.superpage, **superpage))


def sparse_superpages(nr, touched, then_ns=0, after=()):
    """One thread writes the first `touched` pages of each of `nr` regions, waits, and writes the pages `after`."""
    h = Hand([nr + 8])
    v, t = h.vma(0, (nr + 8) * PMD_PAGES), h.thread()
    for region in range(nr):
        h.write(t, v, *range(region * PMD_PAGES, region * PMD_PAGES + touched))
    h.sleep(t, then_ns)
    h.write(t, v, *after)
    return h.workload()


def test_recovery_begins_at_85_percent_and_ends_at_70():
    # 32 MiB are 8,192 pages: 16 regions. The 14th superpage leaves 1,024 free, less than 15 % (1,229): recovery. Each
    # superpage gives 502 pages back, some of which stay on the CPU's lists: after three 2,530 less those are free,
    # after four more than 30 % (2,458).
    outcome = simulate(sparse_superpages(14, 10, SECOND_NS), machine_of(32 * MIB, 2), hawkeye())
    assert outcome.recovered_bytes == 4 * 502 * 4096
    assert outcome.untouched_bytes == 14 * 502 * 4096  # they were mapped for nothing, recovered or not
    assert outcome.peak_bytes == 14 * 512 * 4096
    assert not outcome.out_of_memory
    before = simulate(sparse_superpages(13, 10, SECOND_NS), machine_of(32 * MIB, 2), hawkeye())
    assert before.recovered_bytes == 0


def test_recovered_pages_fault_again_and_are_not_lost():
    again = [5, 300, 301, 11 * PMD_PAGES + 300]  # touched; recovered twice; still in its superpage
    workload = sparse_superpages(14, 10, SECOND_NS, again)
    outcome = simulate(workload, machine_of(32 * MIB, 2), hawkeye())
    assert outcome.faults_by_kind["huge"] == 14
    assert outcome.faults == 14 + 2
    assert outcome.peak_bytes == 14 * 512 * 4096
    whole(replay(workload, machine_of(32 * MIB, 2), hawkeye()))


def test_recovery_takes_only_what_nothing_touched():
    """K4, seen in a world that ends before its program does: out of memory, all of it touched."""
    h = Hand([16])
    v, t = h.vma(0, 16 * PMD_PAGES), h.thread()
    for region in range(14):
        h.write(t, v, *range(region * PMD_PAGES, region * PMD_PAGES + 10))
    h.sleep(t, SECOND_NS)
    h.write(t, v, *range(3, 16 * PMD_PAGES))
    world = replay(h.workload(), machine_of(24 * MIB), hawkeye())
    assert outcome_of(world, h.workload(), hawkeye()).out_of_memory
    broken = [slot for slot in range(14) if world.pmap.huge[slot] == NOT_HUGE and world.pmap.nr_mapped[slot]]
    assert broken
    for slot in broken:
        states = world.pmap.state[slot * PMD_PAGES : (slot + 1) * PMD_PAGES]
        zero = states & STATE == ZERO_PAGE
        assert not np.any(states[zero] & TOUCHED)
        assert np.all(states[:10] & TOUCHED)
    whole(world)


def test_without_pressure_or_without_the_rule_nothing_is_recovered():
    for chosen, memory in ((hawkeye(), 64 * MIB), (hawkeye(recover_above_ratio=0.0), 32 * MIB)):
        assert simulate(sparse_superpages(14, 10, SECOND_NS), machine_of(memory), chosen).recovered_bytes == 0


def test_recovery_lets_a_program_go_on_that_superpages_alone_would_starve():
    workload = sparse_superpages(15, 10, SECOND_NS, range(15 * PMD_PAGES, 15 * PMD_PAGES + 900))
    starved = simulate(workload, machine_of(32 * MIB, 2), hawkeye(recover_above_ratio=0.0))
    saved = simulate(workload, machine_of(32 * MIB, 2), hawkeye())
    assert starved.out_of_memory
    assert not saved.out_of_memory


def test_a_block_of_n_pages_is_followed_by_a_wait_of_n_over_the_rate():
    b = make_buddy([16 + 4])  # a block of 16 pages and one of 4
    s, r = make_scrub(1), scrub_rules("scrubd", start=0, pages_per_s=1000)
    assert wake_after_free(s, r, b, 0, 4, 0, 0)
    assert next_block(s, r, b, 0, 0, 5_000_000) == (0, 4, 0)
    for early_ns in (5_000_001, 20_999_999):
        assert next_block(s, r, b, 0, 0, early_ns)[0] == NO_PFN
        assert s.awake[0] == 1
    assert next_block(s, r, b, 0, 0, 21_000_000) == (16, 2, 0)
    assert next_block(s, r, b, 0, 0, 24_999_999)[0] == NO_PFN
    assert s.awake[0] == 1
    assert next_block(s, r, b, 0, 0, 25_000_000)[0] == NO_PFN
    assert s.awake[0] == 0  # nothing is left: asleep


@pytest.mark.parametrize("rate", [2000, 10_000, 0])
def test_the_supply_of_zeroed_pages_grows_no_faster_than_the_rate(rate):
    h = Hand([12])
    v, t = h.vma(0, 6144), h.thread()
    h.write(t, v, *range(6144))
    h.unmap(t, 0, 6144)  # merges to blocks that wake the scrubber
    for _ in range(100):
        h.sleep(t, SECOND_NS // 100)
        h.write(t, v, 0)
    chosen = policy.load("linux-6.18+prezero-4k")
    chosen = msgspec.structs.replace(chosen, zero=msgspec.structs.replace(chosen.zero, scrub_pages_per_s=rate))
    outcome = simulate(h.workload(), machine_of(64 * MIB), chosen)
    low = min(range(len(outcome.supply)), key=lambda i: outcome.supply[i][1])
    (from_ns, least), (_, most) = outcome.supply[low], outcome.supply[-1]
    grown = [(nr - least) / 4096 / (t_ns - from_ns) * SECOND_NS for t_ns, nr in outcome.supply[low + 20 :]]
    assert most > least
    assert outcome.zeroed_ahead_bytes >= 1024 * 4096
    if rate:
        block = 1024 * SECOND_NS / (outcome.supply[low + 20][0] - from_ns)  # the first is zeroed at once
        assert max(grown) <= rate + block
        assert most - least < 3072 * 4096 or rate > 2000
    else:
        assert max(grown) > 20_000


def test_a_limit_needs_a_scrubber(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "linux-6.18"\n[zero]\nscrub_pages_per_s = 100\n')
    with pytest.raises(FirsttouchError, match=r"zero\.scrub_pages_per_s is 100"):
        policy.load(str(file))
