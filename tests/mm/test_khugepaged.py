"""Promotion: which regions become superpages, when, and what that costs. Costs are those of `handmade.machine`.

A wake of the daemon looks at 8 regions (4,096 entries). To look at one takes 512 * 4 ns. To promote one with n pages
takes alloc_large[9] 51,200 + n * (copy 400 + unmap 100) + (512 - n) * zeroing 300, and 12 ns for each page that moves
between free lists under the zone lock.
"""

import msgspec
import numpy as np
import pytest
from hand_workload import Hand, linux, recorded, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost
from firsttouch.mm.buddy import check as check_buddy
from firsttouch.mm.pmap import HUGE, STATE, TOUCHED
from firsttouch.mm.pmap import check as check_pmap
from firsttouch.mm.promotion import SCANNED, bucket, ratio_pages
from firsttouch.mm.simulate import outcome_of, replay, simulate
from firsttouch.units import PMD_PAGES

SECOND_NS = 10**9
SCAN_NS, ALLOC_NS, ZONE_PAGE_NS = 512 * 4, 51_200, 12


def rules(name="linux-6.18+khugepaged", **changes):
    """A policy in which faults map base pages and the daemon is khugepaged, with fields of [superpage] changed."""
    chosen = policy.load(name)
    fields = {"at_first_touch": False, **changes}
    return msgspec.structs.replace(chosen, superpage=msgspec.structs.replace(chosen.superpage, **fields))


def populations(counts, then_ns, after=()):
    """One thread writes the first `counts[i]` pages of region i, sleeps, and writes the pages `after`."""
    h = Hand([len(counts)])
    v, t = h.vma(0, len(counts) * PMD_PAGES), h.thread()
    for region, nr in enumerate(counts):
        h.write(t, v, *range(region * PMD_PAGES, region * PMD_PAGES + nr))
    h.sleep(t, then_ns)
    h.write(t, v, *after)
    return h.workload()


def promote_ns(nr_pages):
    return ALLOC_NS + nr_pages * (400 + 100) + (PMD_PAGES - nr_pages) * 300


def whole(world):
    """Nothing is lost: page tables and free lists hold, and every page is in one place."""
    assert check_pmap(world.pmap) == []
    assert check_buddy(world.buddy) == []


@pytest.mark.parametrize(
    ("seconds", "promoted"),
    [
        (9, 0),  # the first wake is at 10 s
        (11, 8),  # 4,096 entries are 8 regions
        (25, 16),
        (35, 20),  # all
    ],
)
def test_a_wake_promotes_eight_regions(seconds, promoted):
    last = [region * PMD_PAGES + 300 for region in range(20)]
    outcome = simulate(populations([3] * 20, seconds * SECOND_NS, last), small_machine(), rules())
    assert outcome.promotions == promoted
    assert outcome.faults == 20 * 3 + (20 - promoted)  # page 300 of a promoted region is there
    assert outcome.copied_bytes == promoted * 3 * 4096
    assert outcome.zeroed_ahead_bytes == promoted * 509 * 4096
    assert outcome.untouched_bytes == promoted * 508 * 4096
    extra_ns = outcome.background_ns - promoted * (SCAN_NS + promote_ns(3))
    assert extra_ns % ZONE_PAGE_NS == 0
    assert 0 <= extra_ns <= promoted * 50 * ZONE_PAGE_NS or promoted == extra_ns == 0


def test_nothing_happens_in_a_run_that_is_shorter_than_the_first_sleep():
    workload = populations([40, 512, 3], SECOND_NS)
    plain, daemon = (simulate(workload, small_machine(), linux(diffs)) for diffs in ("+thp", "+thp+khugepaged"))
    same = {"policy": "", "available": "now", "apply": ""}
    assert msgspec.structs.replace(plain, **same) == msgspec.structs.replace(daemon, **same)


@pytest.mark.parametrize(
    ("changes", "promoted"),
    [
        ({}, [True, True, True, True, True]),  # one page of 512 is enough
        ({"promote_max_none": 0}, [False, False, False, False, True]),
        ({"promote_max_none": 100}, [False, False, False, True, True]),  # 412 or more are mapped
        ({"promote_min_ratio": 0.5}, [False, True, True, True, True]),
        ({"promote_min_ratio": 0.502}, [False, False, True, True, True]),  # 0.502 * 512 = 257.02: 258 pages
    ],
)
def test_which_regions_are_full_enough(changes, promoted):
    counts = [1, 256, 411, 412, 512]
    world = replay(populations(counts, 11 * SECOND_NS), small_machine(), rules(**changes))
    copied = sum(nr for nr, yes in zip(counts, promoted, strict=True) if yes)  # tells which they were
    assert outcome_of(world, populations([1], 0), rules()).copied_bytes == copied * 4096
    assert world.promotion.counts[SCANNED] == len(counts)  # one wake, every region once
    whole(world)


def test_ratios_and_buckets():
    assert [ratio_pages(ratio) for ratio in (0, 1 / 512, 0.5, 0.9, 1)] == [0, 1, 256, 461, 512]
    # Ten buckets over 512 pages: 51.2 pages each.
    assert [bucket(nr) for nr in (0, 51, 52, 460, 461, 512)] == [0, 0, 1, 8, 9, 9]


def test_a_region_that_is_not_inside_its_mapping_stays():
    h = Hand([3])
    v, t = h.vma(100, 1400), h.thread()  # only pages 512 to 1023 are a whole region
    h.write(t, v, *range(400, 1200))
    h.sleep(t, 11 * SECOND_NS)
    outcome = simulate(h.workload(), small_machine(), rules(promote_max_none=511))
    assert outcome.promotions == 1
    assert outcome.copied_bytes == 512 * 4096


@pytest.mark.parametrize(("shared", "promoted"), [(255, 1), (256, 1), (257, 0)])
def test_pages_that_a_child_shares_stand_in_the_way(shared, promoted):
    h = Hand([1, 1])
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, *range(shared))
    child = h.fork(t, mm=1)
    h.write(t, v, *range(shared, 400))
    h.sleep(child, 19 * SECOND_NS)  # until before the second wake
    h.sleep(t, 11 * SECOND_NS)
    world = replay(h.workload(), small_machine(2), rules())
    # The child's region, of shared pages alone, is looked at as well and is one more if it is small enough.
    assert outcome_of(world, h.workload(), rules()).promotions == promoted * 2
    whole(world)


def test_a_copied_page_is_the_parents_own_afterwards():
    h = Hand([1, 1])
    v, t = h.vma(0, 512), h.thread()
    h.write(t, v, *range(10))
    child = h.fork(t, mm=1)
    h.sleep(child, 30 * SECOND_NS)
    h.sleep(t, 11 * SECOND_NS)
    h.write(t, v, 5)  # no copy on write: the promotion has copied it
    outcome = simulate(h.workload(), small_machine(2), rules(promote_scan_pages=512))
    assert outcome.faults_by_kind["cow"] == 0
    assert outcome.faults == 10


def test_the_fault_that_fills_a_region_to_the_threshold_promotes_it():
    chosen = linux("+promote-50")
    outcome = simulate(populations([512, 255], 0), small_machine(), chosen)
    assert outcome.faults == 256 + 255
    assert outcome.promotions == 1
    assert outcome.background_ns == 0
    assert outcome.peak_bytes == max(256 + 512, 512 + 255) * 4096  # old pages and new block stand beside each other
    assert outcome.latency.max_ns > promote_ns(256)
    assert outcome.copied_bytes == 256 * 4096
    whole(replay(populations([512, 255], 0), small_machine(), chosen))


def test_a_threshold_of_all_pages_promotes_full_regions_only_and_of_more_never():
    full = simulate(populations([512, 511], 0), small_machine(), linux("+promote-100"))
    assert (full.promotions, full.faults) == (1, 1023)
    with pytest.raises(FirsttouchError, match=r"promote_in_fault_ratio is 1\.01"):
        linux("+promote-101")


def fragmented(nr_after):
    """Memory of 4 MiB, of which the program holds one page in every block of 512; then it waits."""
    h = Hand([3])
    v, t = h.vma(0, 1536), h.thread()
    h.write(t, v, *range(1000))
    h.unmap(t, 700, 1000)
    h.sleep(t, nr_after)
    return h.workload()


@pytest.mark.parametrize(("seconds", "failed"), [(11, 1), (69, 1), (71, 2), (79, 2), (81, 3)])
def test_where_memory_has_no_block_the_daemon_sleeps_a_minute_then_gives_the_wake_up(seconds, failed):
    # Wake at 10 s: fails, sleeps 60 s; at 70 s fails again, which ends the wake; the next is at 80 s.
    small = msgspec.structs.replace(small_machine(), memory_bytes=4 << 20)
    world = replay(fragmented(seconds * SECOND_NS), small, rules())
    assert world.promotion.counts.tolist()[1:3] == [0, failed]
    whole(world)


def test_the_fullest_region_comes_first_by_coverage():
    counts = [10, 400, 60, 300, 512]
    firsts = []
    for wakes in range(1, 6):
        chosen = rules(promote="coverage", promote_scan_pages=512)
        outcome = simulate(populations(counts, wakes * 10 * SECOND_NS + SECOND_NS), small_machine(), chosen)
        firsts.append(outcome.copied_bytes // 4096)
    assert np.diff([0, *firsts]).tolist() == [512, 400, 300, 60, 10]


def free_lines(made):
    """The machine with lock lines that travel at once."""
    return msgspec.structs.replace(made, cost=msgspec.structs.replace(made.cost, lock_handoff=Cost(ns=0.0)))


def computing(seconds):
    h = Hand([2])
    v, t = h.vma(0, 1024), h.thread()
    h.write(t, v, *range(600))
    h.touch(t, v, 0, think_ns=seconds * SECOND_NS)
    return h.workload()


def test_with_one_cpu_the_program_waits_for_the_daemon_with_two_it_does_not():
    one, two = (free_lines(small_machine(nr_cpus)) for nr_cpus in (1, 2))
    alone = simulate(computing(15), two, rules(promote="never", thp="never"))
    shared, beside = simulate(computing(15), one, rules()), simulate(computing(15), two, rules())
    assert shared.promotions == beside.promotions == 2
    # Both free as many blocks at the exit as they hold: 2 superpages against 600 pages.
    saved_ns = 600 * 100 - 2 * (100 << 9)
    assert shared.wall_ns - beside.wall_ns == shared.background_ns == beside.background_ns
    assert abs(alone.wall_ns - beside.wall_ns - saved_ns) < 10_000
    assert alone.system_ns - beside.system_ns == alone.wall_ns - beside.wall_ns  # nothing of it is the program's
    assert shared.disturbances.sched_latency_ns == shared.background_ns
    assert beside.disturbances.sched_latency_ns == 0


def test_a_recording_has_no_more_faults_with_the_daemon_and_fewer_where_it_came_first():
    last = [region * PMD_PAGES + 300 for region in range(4)]
    workload = recorded(populations([3] * 4, 11 * SECOND_NS, last))
    assert simulate(workload, small_machine(), rules(promote="never", thp="never")).faults == 16
    assert simulate(workload, small_machine(), rules()).faults == 12


def twin(counts, sleeps, scan_regions, max_none):
    """Faults of a thread that between sleeps touches the next page of each region: plain lists, no kernel."""
    mapped = [set(range(nr)) for nr in counts]
    huge = [False] * len(counts)
    faults, cursor, now, wake = sum(counts), 0, 0, 10
    for nr, seconds in enumerate(sleeps):
        now += seconds
        while wake < now:
            left, rounds = scan_regions, 0
            while left > 0:
                if cursor >= len(counts):
                    cursor = 0
                if cursor == 0:
                    rounds += 1
                    if rounds > 1:
                        break
                region, cursor = cursor, cursor + 1
                if not mapped[region]:
                    continue
                left -= 1
                if not huge[region] and 512 - len(mapped[region]) <= max_none:
                    huge[region] = True
            wake += 10
        for region in range(len(counts)):
            if not huge[region] and 511 - nr not in mapped[region]:
                faults += 1
                mapped[region].add(511 - nr)
    return faults, sum(huge)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.sampled_from([0, 1, 5, 20]), min_size=1, max_size=12).filter(any),
    sleeps=st.lists(st.sampled_from([3.3, 8.3, 11.3, 25.3]), min_size=1, max_size=5),
    scan_regions=st.integers(1, 9),
    max_none=st.sampled_from([511, 507, 492, 491]),
)
def test_the_daemon_is_its_twin(counts, sleeps, scan_regions, max_none):
    h = Hand([len(counts)])
    v, t = h.vma(0, len(counts) * PMD_PAGES), h.thread()
    for region, nr in enumerate(counts):
        h.write(t, v, *range(region * PMD_PAGES, region * PMD_PAGES + nr))
    for nr, seconds in enumerate(sleeps):
        h.sleep(t, round(seconds * SECOND_NS))  # sums of these are never near to a wake
        h.write(t, v, *(region * PMD_PAGES + 511 - nr for region in range(len(counts))))
    chosen = rules(promote_scan_pages=scan_regions * 512, promote_max_none=max_none)
    world = replay(h.workload(), small_machine(), chosen)
    outcome = outcome_of(world, h.workload(), chosen)
    assert (outcome.faults, outcome.promotions) == twin(counts, sleeps, scan_regions, max_none)
    whole(world)


def test_a_promoted_region_is_whole_and_as_much_touched_as_before():
    """K1, at the moment after the promotion: the workload ends in the middle, out of memory."""
    h = Hand([40])
    v, t = h.vma(0, 40 * PMD_PAGES), h.thread()
    h.write(t, v, *range(100))
    h.sleep(t, 11 * SECOND_NS)
    h.write(t, v, *range(512, 40 * PMD_PAGES))
    small = msgspec.structs.replace(small_machine(), memory_bytes=16 << 20)
    world = replay(h.workload(), small, rules())
    assert outcome_of(world, h.workload(), rules()).out_of_memory
    slot = int(world.pmap.slot[0])
    states = world.pmap.state[:PMD_PAGES] if slot == 0 else world.pmap.state[slot * PMD_PAGES : (slot + 1) * PMD_PAGES]
    assert world.pmap.huge[slot] == HUGE
    assert world.pmap.nr_mapped[slot] == PMD_PAGES == np.count_nonzero(states & STATE)
    assert np.count_nonzero(states & TOUCHED) == 100
    whole(world)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"thp": "never"}, "superpage.thp"),
        ({"promote": "never"}, "superpage.at_first_touch"),
        ({"promote_max_none": 512}, "superpage.promote_max_none"),
        ({"promote_sleep_ms": 0}, "superpage.promote_sleep_ms"),
        ({"promote_min_ratio": 1.5}, "superpage.promote_min_ratio"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(tmp_path, changes, field):
    file = tmp_path / "mine.toml"
    lines = {"thp": "always", "promote": "khugepaged", "at_first_touch": False, **changes}
    values = "\n".join(f"{key} = {value!r}".replace("False", "false") for key, value in lines.items())
    file.write_text(f'extends = "linux-6.18"\n[superpage]\n{values}\n')
    with pytest.raises(FirsttouchError, match=field.replace(".", r"\.")):
        policy.load(str(file))
