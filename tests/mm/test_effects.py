"""Effects: what each policy is for has the right sign, on small workloads and a machine of round costs.

A cold line costs 11 ns here, a hot one 1, and zeroing a page in the fault 300. So a page zeroed ahead gains 300 ns in
the fault and loses 10 ns with every line touched: break-even is at 30 of its 64 lines.
"""

from functools import cache
from itertools import pairwise

import msgspec
import pytest
from hand_workload import Hand
from handmade import PAGE_BYTES, machine

from firsttouch import policy
from firsttouch.machine import Cost, ZeroCost
from firsttouch.mm.simulate import simulate
from firsttouch.mm.zeroing import break_even_lines
from firsttouch.workload.generators import pft, server, sparse, storm

MEMORY_BYTES = 64 << 20
ZERO_NS, COLDER_NS = 300, 10  # zeroing a page in the fault; what a cold line costs more
BASE = "linux-2.6.10"
SCRUBBERS = [f"{BASE}+scrubd-v{version}" for version in (3, 4, 6, 8)]


def round_machine(nr_cpus=2, *, zero_page_ns=ZERO_NS, line_bytes=64):
    made = machine(nr_cpus=nr_cpus, memory_bytes=MEMORY_BYTES, line_bytes=line_bytes)
    zero = ZeroCost(
        bytes=[PAGE_BYTES, 512 * PAGE_BYTES],
        hot_ns=[200.0, 200.0 * 512],
        cold_ns=[float(zero_page_ns), 512.0 * zero_page_ns],
    )
    return msgspec.structs.replace(
        made,
        cost=msgspec.structs.replace(made.cost, line_cold=Cost(ns=made.cost.line_hot.ns + COLDER_NS)),
        zero=dict.fromkeys(made.zero, zero),
    )


def run(workload, name=BASE, nr_cpus=2, *, on=None, **zero):
    """The outcome of `workload` under a policy by name, with fields of its [zero] section changed."""
    chosen = policy.load(name)
    chosen = msgspec.structs.replace(chosen, zero=msgspec.structs.replace(chosen.zero, **zero))
    return simulate(workload, on or round_machine(nr_cpus), chosen)


def dense(lines=1, threads=1, nr_pages=256):
    """Every page of each thread's part, in order."""
    return pft(nr_pages * PAGE_BYTES, threads=threads, lines=lines, stride_bytes=PAGE_BYTES)


@cache
def churn(threads=2, wait_ns=2_000_000):
    """Requests with idle time between them, whose buffers come and go."""
    return server(60, threads=threads, heap_pages=64, buffer_pages=256, wait_ns=wait_ns)


def frees_then_sleeps(nr_pages, sleep_ns):
    """One thread writes to all pages, gives them back, sleeps, and ends."""
    h = Hand([-(-nr_pages // 512)])
    t, v = h.thread(), h.vma(0, nr_pages)
    h.write(t, v, *range(nr_pages))
    h.unmap(t, 0, nr_pages)
    h.sleep(t, sleep_ns)
    return h.workload()


# -- zeroing ahead


@pytest.mark.parametrize("scrubber", SCRUBBERS)
def test_zeroed_pages_shorten_the_faults_of_sparse_touches(scrubber):
    workload = sparse(2048, touched_ratio=0.05)
    plain, scrubbed = run(workload), run(workload, scrubber)
    assert scrubbed.faults == plain.faults
    assert scrubbed.zeroed_hits == plain.zeroed_misses > 0
    assert scrubbed.zeroed_misses == scrubbed.zeroed_in_fault_bytes == 0
    assert scrubbed.fault_ns < plain.fault_ns
    assert scrubbed.latency.p50_ns < plain.latency.p50_ns


def test_the_gain_falls_with_the_lines_touched_and_ends_at_break_even():
    lines = [1, 8, 16, 24, 29, 31, 40, 56, 64]
    gains, fault_gains = [], []
    for nr in lines:
        plain, scrubbed = run(dense(nr)), run(dense(nr), f"{BASE}+scrubd-v6")
        gains.append(plain.wall_ns - scrubbed.wall_ns)
        fault_gains.append(plain.fault_ns - scrubbed.fault_ns)
    even = break_even_lines(round_machine().cost, ZERO_NS)
    assert lines[0] < even < lines[-1]
    assert [gain > 0 for gain in gains] == [nr < even for nr in lines]
    assert [a - b for a, b in pairwise(gains)] == [256 * COLDER_NS * (b - a) for a, b in pairwise(lines)]
    assert len(set(fault_gains)) == 1  # the lines are not in the fault
    assert fault_gains[0] >= 256 * ZERO_NS


def test_where_cold_lines_cost_no_more_the_lines_touched_take_nothing_back():
    flat = msgspec.structs.replace(round_machine(), cost=machine().cost)
    flat = msgspec.structs.replace(flat, cost=msgspec.structs.replace(flat.cost, line_cold=flat.cost.line_hot))
    plain, scrubbed = policy.load(BASE), policy.load(f"{BASE}+scrubd-v6")
    gains = {simulate(dense(n), flat, plain).wall_ns - simulate(dense(n), flat, scrubbed).wall_ns for n in (1, 32, 64)}
    assert len(gains) == 1
    assert gains.pop() > 0


@pytest.mark.parametrize(
    "name",
    [BASE, f"{BASE}+prefault-v13", f"{BASE}+atomic-pte", "linux-6.18", "linux-6.18+thp", "linux-6.18+populate"],
)
def test_without_a_scrubber_nothing_comes_zeroed(name):
    for workload in (churn(), storm(4, at_once=2)):
        outcome = run(workload, name)
        assert outcome.zeroed_misses > 0
        assert (outcome.zeroed_hits, outcome.background_ns, outcome.zeroed_ahead_bytes) == (0, 0, 0)
        assert outcome.disturbances.wakeups == 0
        assert outcome.supply == []


@pytest.mark.parametrize(
    ("name", "zero"),
    [
        (f"{BASE}+scrubd-v2", {}),  # as it was posted
        (f"{BASE}+scrubd-v6", {"scrub_load": 0}),
        (f"{BASE}+scrubd-v8", {"scrub_load": 0}),
        (f"{BASE}+scrubd-v6", {"scrub_from_s": 3600, "scrub_until_s": 7200}),  # the run is over by then
        (f"{BASE}+scrubd-v8", {"scrub_from_s": 3600, "scrub_until_s": 7200}),
        (f"{BASE}+scrubd-v6", {"scrub_start": 11}),
    ],
)
def test_a_daemon_that_may_not_run_leaves_the_kernel_as_it_was(name, zero):
    plain, off = run(churn()), run(churn(), name, **zero)
    assert (off.zeroed_hits, off.background_ns, off.zeroed_ahead_bytes) == (0, 0, 0)
    assert (off.faults, off.fault_ns, off.wall_ns) == (plain.faults, plain.fault_ns, plain.wall_ns)
    assert {nr_bytes for _, nr_bytes in off.supply} == {0}


def test_v2_scrubs_once_it_is_given_a_start():
    assert run(churn(), f"{BASE}+scrubd-v2", scrub_start=4).zeroed_hits > 0


def test_a_window_that_opens_during_the_run_lets_the_daemon_begin():
    h = Hand()
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, *range(100))
    h.sleep(t, 3 * 10**9)
    h.write(t, v, *range(100, 200))
    outcome = run(h.workload(), f"{BASE}+scrubd-v6", nr_cpus=1, scrub_from_s=1, scrub_until_s=2)
    assert outcome.disturbances.wakeups == 1
    assert (outcome.zeroed_misses, outcome.zeroed_hits) == (100, 100)


def test_the_supply_of_zeroed_memory_falls_under_use_and_recovers_in_idle_time():
    outcome = run(churn(), f"{BASE}+scrubd-v6")
    supply = [nr_bytes for _, nr_bytes in outcome.supply]
    assert supply[0] == MEMORY_BYTES
    lowest = min(supply)
    after = supply[supply.index(lowest) :]
    assert lowest < MEMORY_BYTES
    assert max(after) > lowest
    assert outcome.zeroed_ahead_bytes >= max(after) - lowest


def test_without_idle_time_the_supply_only_falls_until_the_program_ends():
    outcome = run(churn(1, 0), f"{BASE}+scrubd-v6", nr_cpus=1)
    supply = [nr_bytes for t_ns, nr_bytes in outcome.supply if t_ns < outcome.wall_ns]
    assert len(supply) > 2
    assert supply == sorted(supply, reverse=True)
    assert supply[-1] < supply[0]


@pytest.mark.parametrize("name", [f"{BASE}+scrubd-v4", f"{BASE}+scrubd-v6", "linux-6.18+prezero-4k"])
def test_a_daemon_that_ran_shows_its_cost(name):
    outcome = run(frees_then_sleeps(4096, 10**9), name)
    assert outcome.background_ns > 0
    assert outcome.disturbances.wakeups > 0
    assert outcome.disturbances.bus_bytes == outcome.zeroed_ahead_bytes > 0
    past_the_caches = policy.load(name).zero.scrub_method == "nontemporal"
    assert (outcome.disturbances.lines_displaced == 0) == past_the_caches


def test_a_polled_engine_takes_less_of_the_cpu_than_zeroing_by_the_cpu():
    """Both zero a page in 8,192 ns, 500 MB/s. With lines of 128 bytes the engine takes the largest blocks, too."""
    workload = frees_then_sleeps(4096, 10**9)
    altix = round_machine(1, zero_page_ns=8192, line_bytes=128)
    by_cpu = run(workload, f"{BASE}+scrubd-v3", on=altix)
    polled = run(workload, f"{BASE}+scrubd-v3", on=altix, scrub_driver="bte")
    waits = run(workload, f"{BASE}+scrubd-v6-bte", on=altix)
    assert polled.zeroed_ahead_bytes == by_cpu.zeroed_ahead_bytes > 0
    assert 0 < polled.background_ns < by_cpu.background_ns / 4  # the daemon sleeps for whole ticks of a transfer
    assert waits.background_ns > polled.background_ns


def test_just_freed_pages_come_back_zeroed_and_hot():
    workload = churn()
    plain, hot = run(workload), run(workload, f"{BASE}+zero-hot-pages")
    assert 0 < hot.zeroed_hits < plain.zeroed_misses  # only what was freed before
    assert hot.zeroed_hits + hot.zeroed_misses == plain.zeroed_misses
    assert hot.zeroed_ahead_bytes >= hot.zeroed_hits * PAGE_BYTES
    assert hot.fault_ns < plain.fault_ns
    assert hot.user_ns == plain.user_ns  # its lines are in the cache
    assert hot.disturbances.bus_bytes == 0


# -- threads and locks


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("diff", ["+atomic-pte", "+split-ptl"])
def test_finer_page_table_locks_wait_less(diff, threads):
    workload = dense(threads=threads, nr_pages=1024 * threads)  # each thread has two page-table pages to itself
    plain, finer = run(workload, nr_cpus=threads), run(workload, BASE + diff, nr_cpus=threads)
    assert finer.faults == plain.faults
    assert finer.lock_wait_ns["page_table"] < plain.lock_wait_ns["page_table"]
    assert sum(finer.lock_wait_ns.values()) < sum(plain.lock_wait_ns.values())
    assert finer.wall_ns < plain.wall_ns


@pytest.mark.parametrize("diff", ["", "+atomic-pte", "+split-ptl", "+prefault-v13"])
def test_one_thread_waits_for_no_page_table_lock(diff):
    assert run(dense(), BASE + diff, nr_cpus=1).lock_wait_ns["page_table"] == 0


def test_prefaulting_takes_the_contended_lock_less_often():
    workload = dense(threads=2)
    plain, ahead = run(workload), run(workload, f"{BASE}+prefault-v13")
    assert plain.lock_wait_ns["page_table"] > 0
    assert ahead.faults < plain.faults / 4
    assert ahead.lock_wait_ns["page_table"] < plain.lock_wait_ns["page_table"] / 4
    assert ahead.wall_ns < plain.wall_ns
    assert ahead.untouched_bytes == plain.untouched_bytes == 0


def test_prefaulting_maps_what_a_sparse_program_never_touches():
    workload = sparse(2048, touched_ratio=0.1, run_pages=2)
    plain, ahead = run(workload), run(workload, f"{BASE}+prefault-v13")
    assert plain.untouched_bytes == 0
    assert ahead.untouched_bytes > 0
    assert ahead.peak_bytes > plain.peak_bytes
    assert ahead.fault_ns > plain.fault_ns  # it zeroes them, too


# -- time is conserved


@pytest.mark.parametrize("name", [BASE, *SCRUBBERS, f"{BASE}+prefault-v13", "linux-6.18+thp"])
def test_one_cpu_that_is_never_idle_spends_all_its_time(name):
    outcome = run(dense(lines=5, threads=3), name, nr_cpus=1)
    assert outcome.user_ns + outcome.system_ns == outcome.wall_ns


@pytest.mark.parametrize(
    "name",
    [BASE, *SCRUBBERS, f"{BASE}+scrubd-v6-bte", f"{BASE}+zero-hot-pages", "linux-6.18+prezero-4k"],
)
def test_one_thread_works_sleeps_or_waits_for_the_daemon(name):
    """60 requests, 1 ms of sleep before each: the daemon's time comes out of the sleeps, but for what it overruns."""
    outcome = run(churn(1, 1_000_000), name, nr_cpus=1)
    late_ns = outcome.disturbances.sched_latency_ns
    assert outcome.user_ns + outcome.system_ns + 60 * 1_000_000 + late_ns == outcome.wall_ns


def test_a_thread_that_wakes_waits_for_the_end_of_one_block():
    outcome = run(frees_then_sleeps(4096, 100_000), f"{BASE}+scrubd-v6", nr_cpus=1)
    late_ns = outcome.disturbances.sched_latency_ns
    assert 0 < late_ns < 1024 * ZERO_NS  # less than the largest block takes
    assert outcome.user_ns + outcome.system_ns + 100_000 + late_ns == outcome.wall_ns


@pytest.mark.parametrize(
    ("name", "nr_pages"),
    [
        (f"{BASE}+scrubd-v3", 2048),
        (f"{BASE}+scrubd-v6", 2048),
        (f"{BASE}+scrubd-v8", 15_500),  # so that less than a tenth of the free memory is zeroed
        (f"{BASE}+scrubd-v6-bte", 2048),
        (f"{BASE}+zero-hot-pages", 2048),
    ],
)
@pytest.mark.parametrize("nr_cpus", [1, 2])
def test_no_more_cpu_time_than_cpus_have(name, nr_pages, nr_cpus):
    outcome = run(frees_then_sleeps(nr_pages, 10**9), name, nr_cpus)
    assert outcome.background_ns > 0
    busy_ns = outcome.user_ns + outcome.system_ns
    assert outcome.wall_ns == busy_ns + 10**9 + outcome.disturbances.sched_latency_ns
    assert busy_ns + outcome.background_ns <= nr_cpus * outcome.wall_ns


def test_what_zeroing_ahead_saves_and_costs_is_in_faults_and_lines():
    workload = sparse(2048, touched_ratio=0.05)
    plain, scrubbed = run(workload), run(workload, f"{BASE}+scrubd-v6")
    lines = workload.lines_touched
    assert scrubbed.user_ns - plain.user_ns == COLDER_NS * lines * plain.faults
    assert plain.system_ns - scrubbed.system_ns == plain.fault_ns - scrubbed.fault_ns


# -- every policy that ships


def shipped():
    """Each base, and each diff with its base; a number where a name takes one."""
    numbers = {
        "+fault-around-N": "+fault-around-16", "+mthp-Nk": "+mthp-64k", "+promote-N": "+promote-50",
        "+promote-later-N": "+promote-later-90", "+prefault-order-N": "+prefault-order-5",
        "+map-around-N": "+map-around-16",
    }  # fmt: skip
    return [preset.extends + numbers.get(preset.name, preset.name) for preset in policy.presets()]


def small_workloads():
    return {
        "pft": pft(2 << 20, threads=2, reps=2),
        "storm": storm(6, at_once=2),
        "server": server(30, threads=2, heap_pages=64),
        "sparse": sparse(4096, threads=2),
    }


@pytest.mark.parametrize("workload", ["pft", "storm", "server", "sparse"])
@pytest.mark.parametrize("name", shipped())
def test_every_policy_runs_every_kind_of_program_the_same_each_time(name, workload):
    first = run(small_workloads()[workload], name)
    assert not first.out_of_memory
    assert first.faults == sum(first.faults_by_kind.values()) > 0 or policy.load(name).fault_ahead.populate
    assert first.wall_ns > 0
    assert first.zeroed_hits + first.zeroed_misses > 0
    assert run(small_workloads()[workload], name) == first
