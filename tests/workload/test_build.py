"""Parallel builds: counted by hand, the sample of jobs, and the published faults of two Linux builds."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hand_workload import linux, small_machine
from test_pft_workload import assert_all_is_free

from firsttouch.errors import FirsttouchError
from firsttouch.mm.sched import NR_IN_IO
from firsttouch.mm.simulate import replay, simulate
from firsttouch.units import PMD_PAGES
from firsttouch.workload import (
    ANON,
    EXEC,
    FORK,
    JOIN,
    MAP,
    NO_CACHE_PAGE,
    SLEEP,
    SYSCALL,
    TOUCH,
    UNMAP,
    WAIT,
    WAKE,
    WRITE,
)
from firsttouch.workload.generators.build import BUILDS, RUN_UNITS, Build, Program, build, reads, sizes

KIB = 1024
TINY = Build(
    jobs=3, parallel=2, helpers=1, user_s=0.0, kernel_s=0.0, make_bytes=8 * KIB, copied_bytes=8 * KIB,
    rewritten_bytes=4 * KIB, temporary_ratio=0.5, size_sigma=0.0,
    shell=Program(8 * KIB, 1.0, 4 * KIB, 12 * KIB),
    helper=Program(16 * KIB, 1.0, 8 * KIB, 4 * KIB),
    compiler=Program(20 * KIB, 1.0, 8 * KIB, 160 * KIB),
)  # fmt: skip


def count(workload, op):
    return int(np.count_nonzero(workload.events.op == op))


def test_a_build_by_hand():
    w = build(TINY, scale=1)
    # Each of 3 jobs: make forks a shell, which forks a helper and a compiler; all three exec and are waited for.
    assert (count(w, FORK), count(w, EXEC), count(w, JOIN), count(w, WAKE), count(w, WAIT)) == (9, 9, 6, 3, 3)
    # The compiler keeps 20 of 40 pages, in one step of 32, and takes 20 in passing, which it unmaps.
    assert count(w, UNMAP) == 3
    outcome = simulate(w, small_machine(2), linux("+fault-around-4"))
    kinds = outcome.faults_by_kind
    assert kinds["file"] == 3 * (2 + 4 + 5)
    assert kinds["zero_fill"] == 2 + 3 * (3 + 1 + 40)
    # Private data of the files: 1 + 2 + 2 pages. Each fork: the child copies 2 pages, its parent 1, which it may keep
    # instead if the child has copied it already, or has gone.
    assert kinds["cow"] + kinds["reuse"] == 3 * (1 + 2 + 2) + 9 * (2 + 1)
    assert outcome.faults == sum(kinds.values())


def test_times_of_the_whole_are_spread_over_its_jobs():
    w = build(replace(TINY, user_s=0.6, kernel_s=0.09, io_s=0.3), scale=1, lines_touched=0)
    assert count(w, SYSCALL) == 9
    assert int(w.events.page[w.events.op == SYSCALL].sum()) == pytest.approx(0.09e9, rel=1e-6)
    sleeps = w.events.op == SLEEP
    assert (int(w.events.page[sleeps].sum()), set(w.events.arg[sleeps])) == (300_000_000, {1})
    plain = simulate(build(TINY, scale=1, lines_touched=0), small_machine(2), linux())
    timed = simulate(w, small_machine(2), linux())
    assert timed.user_ns - plain.user_ns == pytest.approx(0.6e9, rel=1e-6)
    assert timed.system_ns - plain.system_ns >= 0.09e9
    world = replay(w, small_machine(2), linux())
    assert world.sched.counts[NR_IN_IO] == 0


@pytest.mark.parametrize("name", BUILDS)
def test_the_time_of_each_build_is_that_of_its_sample_times_the_weight(name):
    shape = replace(BUILDS[name], parallel=2)
    w = build(shape, scale=1e-9)  # 8 jobs
    nr, weight = w.facts["simulated"], w.facts["weight"]
    assert (nr, weight) == (8, shape.jobs / 8)
    thought = int((w.events.think_ns * np.maximum(1, w.events.end - w.events.page))[w.events.op == TOUCH].sum())
    assert thought * weight / 1e9 == pytest.approx(shape.user_s, rel=0.02)
    assert int(w.events.page[w.events.op == SYSCALL].sum()) * weight / 1e9 == pytest.approx(shape.kernel_s, rel=1e-3)


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_jobs_at_a_time(parallel):
    """Jobs wait only: so many fit into a wall time at once."""
    shape = replace(TINY, jobs=12, parallel=parallel, io_s=12.0)  # each waits for a second
    wall_ns = simulate(build(shape, scale=1), small_machine(8), linux()).wall_ns
    assert wall_ns / 1e9 == pytest.approx(12 / parallel, rel=0.01)


def test_a_slot_is_filled_when_any_job_ends():
    """12 jobs of very different sizes on as many CPUs as slots: no CPU waits for the job that was started first."""
    shape = replace(TINY, jobs=40, parallel=4, user_s=4.0, size_sigma=1.0)
    outcome = simulate(build(shape, scale=1), small_machine(4), linux())
    busy = (outcome.user_ns + outcome.system_ns) / 4
    longest = max(sizes(40, 1.0)) * outcome.user_ns / 40  # at the end one job may run alone
    assert busy <= outcome.wall_ns < busy + longest


@pytest.mark.parametrize("diffs", ["", "+thp", "+fault-around-4"])
def test_a_sample_stands_for_the_whole(diffs):
    shape = replace(BUILDS["makeworld"], jobs=96, make_bytes=64 * KIB)
    whole, sample = (simulate(build(shape, scale=s), small_machine(2), linux(diffs)) for s in (1, 1 / 6))
    for field in ("faults", "user_ns", "system_ns", "fault_ns"):
        assert getattr(sample, field) * 6 == pytest.approx(getattr(whole, field), rel=0.02), field


def test_the_seed_changes_the_order_and_not_the_totals():
    one, two = (build(replace(BUILDS["makeworld"], jobs=24), scale=1, seed=seed) for seed in (1, 2))
    assert not np.array_equal(one.events.page, two.events.page)
    faults = [simulate(w, small_machine(2), linux()).faults for w in (one, two)]
    assert faults[0] == pytest.approx(faults[1], rel=0.01)


@pytest.mark.parametrize("number", [1, 2, 7, 100])
@pytest.mark.parametrize("sigma", [0.0, 0.6, 2.0])
def test_sizes_have_the_mean_one(number, sigma):
    made = sizes(number, sigma)
    assert sum(made) == pytest.approx(number)
    assert made == sorted(made) and min(made) > 0
    assert (max(made) - min(made) < 1e-12) == (sigma == 0 or number == 1)


@pytest.mark.parametrize("ratio", [0.1, 0.38, 0.8, 1.0])
@pytest.mark.parametrize("nr_units", [0, 1, 5, 1000, 20_000])
def test_reads_are_inside_ascending_apart_and_as_many_as_asked_for(nr_units, ratio):
    runs = reads(nr_units, ratio, np.random.default_rng(3))
    flat = [unit for start, end in runs for unit in range(start, end)]
    assert flat == sorted(set(flat)) and all(0 <= unit < nr_units for unit in flat)
    assert len(flat) == round(nr_units * ratio)
    if nr_units == 20_000:
        assert len(flat) / len(runs) == pytest.approx(RUN_UNITS, rel=0.1)


def test_file_pages_are_the_same_physical_pages_in_every_process():
    w = build(replace(TINY, jobs=4), scale=1)
    file = w.vmas.flags & ANON == 0
    assert np.all((w.vmas.cache_page != NO_CACHE_PAGE) == file)
    spans = sorted((int(c), int(c + e - s)) for c, s, e in zip(
        w.vmas.cache_page[file], w.vmas.start[file], w.vmas.end[file], strict=True))  # fmt: skip
    assert spans[0][0] == 0 and all(a[1] <= b[0] for a, b in pairwise(spans))  # no page twice
    used = Counter()
    for e in np.flatnonzero(w.events.op == TOUCH):
        v = w.events.vma[e]
        if file[v] and w.events.kind[e] & WRITE == 0:
            used.update(w.vmas.cache_page[v] + p - w.vmas.start[v] for p in range(w.events.page[e], w.events.end[e]))
    assert sorted(set(used.values())) == [4]  # each read page by one process of each of 4 jobs
    assert len(used) == 2 + 4 + 5


def test_slots_with_own_files_map_none_in_common():
    """12 jobs in 3 slots: each slot is a process with jobs one after another, and copies of every program."""
    shape = replace(TINY, jobs=12, parallel=3, own_files=True, shell=replace(TINY.shell, library_bytes=4 * KIB))
    w = build(shape, scale=1)
    assert (count(w, FORK), count(w, EXEC), count(w, JOIN)) == (3 + 12 * 3, 3 + 12 * 3, 3 + 12 * 3)
    slot_of = {}  # thread: its builder
    for t, parent in enumerate(w.threads.parent):
        slot_of[t] = slot_of.get(int(parent), t) if parent > 0 else t
    used = {}
    for t in range(1, len(w.threads.first)):
        for e in range(w.threads.first[t], w.threads.end[t]):
            v = w.events.vma[e]
            if w.events.op[e] in (TOUCH, MAP) and w.vmas.flags[v] & ANON == 0:
                used.setdefault(slot_of[t], set()).update(
                    range(w.vmas.cache_page[v], w.vmas.cache_page[v] + w.vmas.end[v] - w.vmas.start[v]))  # fmt: skip
    assert len(used) == 3
    assert sum(len(pages) for pages in used.values()) == len(set().union(*used.values())) == 3 * (3 + 6 + 7)
    outcome = simulate(w, small_machine(2), linux("+fault-around-4"))
    assert outcome.faults_by_kind["file"] == 12 * (2 + 4 + 5)


@pytest.mark.parametrize("page_bytes", [4096, 8192, 16384, 65536])
@pytest.mark.parametrize("name", BUILDS)
def test_every_touch_is_inside_its_mapping_and_its_address_space(name, page_bytes):
    w = build(replace(BUILDS[name], parallel=2), scale=1e-9, page_bytes=page_bytes)
    touched = w.events.op == TOUCH
    v = w.events.vma[touched]
    assert np.all(w.vmas.start[v] <= w.events.page[touched]) and np.all(w.events.end[touched] <= w.vmas.end[v])
    most = int(w.mm_regions.max()) * PMD_PAGES
    assert int(w.events.end[touched].max()) <= most
    bytes_touched = int((w.events.end - w.events.page)[touched].sum()) * page_bytes
    small = build(replace(BUILDS[name], parallel=2), scale=1e-9)
    plain = int((small.events.end - small.events.page)[small.events.op == TOUCH].sum()) * 4096
    assert plain * 0.98 <= bytes_touched < plain * 4  # larger pages hold more than was asked for


# The published minor faults of make -j60, in millions; the cells for windows of 1, 2, 16 and 32 pages. Window sizes of
# the model are in KiB. Tolerance: what the pattern of reads leaves of the fit.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("kernel", {4: 283.301572, 8: 247.151987, 64: 204.772882, 128: 199.568944}),
        ("kernel-rebuild", {4: 5.396854, 8: 4.148444, 64: 2.577282, 128: 2.361957}),
    ],
)
def test_published_faults_of_linux_builds(name, published):
    w = build(replace(BUILDS[name], parallel=1, make_bytes=4 * KIB), scale=1e-9)
    machine = small_machine(1)
    for window_kib, millions in published.items():
        outcome = simulate(w, machine, linux(f"+fault-around-{window_kib}"))
        assert not outcome.out_of_memory
        assert outcome.faults * w.facts["weight"] / 1e6 == pytest.approx(millions, rel=0.02), window_kib


def test_memory_comes_back():
    assert_all_is_free(replay(build(TINY, scale=1), small_machine(2), linux()))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"of": "world"}, "no build 'world'"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"parallel": 0}, "parallel is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"of": replace(TINY, helpers=-1)}, "helpers is -1"),
        ({"of": replace(TINY, temporary_ratio=1.0)}, "temporary_ratio is 1.0"),
        ({"of": replace(TINY, shell=replace(TINY.shell, read_ratio=0.0))}, "shell.read_ratio is 0.0"),
        ({"of": replace(TINY, compiler=replace(TINY.compiler, fresh_bytes=0))}, "compiler.fresh_bytes is 0"),
    ],
)
def test_a_parameter_out_of_range_is_named(parameters, said):
    with pytest.raises(FirsttouchError, match=said):
        build(**parameters)


def test_weights_are_exact():
    w = build(replace(TINY, jobs=1000), scale=0.1)
    assert Fraction(w.facts["weight"]) == Fraction(w.facts["jobs"], w.facts["simulated"]) == 10


@pytest.mark.parametrize("parallel", [2, 3, 8])
def test_the_last_job_of_a_directory_runs_alone(parallel):
    """Jobs wait only, a second each: of 3 in a directory two at a time, then the last one, then the next directory."""
    shape = replace(TINY, jobs=12, parallel=parallel, io_s=12.0, directory_jobs=3)
    wall_ns = simulate(build(shape, scale=1), small_machine(8), linux()).wall_ns
    assert wall_ns / 1e9 == pytest.approx(4 * (1 + 1), rel=0.01)


def test_large_blocks_fit_where_the_compiler_asks_for_much():
    """320 pages of a compiler from page 2 + 1: aligned blocks of 16 are at 16, 32, .. 304 if there is room."""
    shape = replace(TINY, jobs=1, temporary_ratio=0.0, make_bytes=4 * KIB,
                    compiler=Program(8 * KIB, 1.0, 4 * KIB, 1280 * KIB))  # fmt: skip
    small = 1 + 3 + 1  # of make, shell, helper, which are too small
    for growth_bytes, blocks, singles in (
        (4 * KIB, 0, 320),  # the mapping always ends with the page that faults
        (1280 * KIB, 19, 320 - 19 * 16),  # 13 pages before page 16, and 3 after page 319
    ):
        w = build(replace(shape, growth_bytes=growth_bytes), scale=1)
        kinds = simulate(w, small_machine(2), linux("+mthp-64k")).faults_by_kind
        assert kinds["zero_fill"] - small == blocks + singles
