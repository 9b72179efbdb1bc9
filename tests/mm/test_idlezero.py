"""pagezero: its marks and its walk by hand and against the twin; in the event loop, when it runs and who waits."""

import msgspec
import pytest
from hand_workload import Hand
from handmade import PAGE_BYTES, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from pageq_twin import QueuesTwin

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost
from firsttouch.mm.buddy import NO_PFN, UNZEROED, make_buddy
from firsttouch.mm.idlezero import make_idlezero, next_page, page_zeroed, wants_page, zero_until_asleep
from firsttouch.mm.pageq import alloc_page, check, make_queues, put_page
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload.generators import pft, sparse

IDLEZERO = "freebsd-6+idlezero"
VARIANTS = (IDLEZERO, f"{IDLEZERO}-preempt", f"{IDLEZERO}-preempt-broken")


def made(nr_pages, nr_colours):
    b = make_buddy([nr_pages])
    return make_idlezero(), make_queues(b, nr_colours), b


def turn(z, q, b):
    """The page that one turn zeroed, or None."""
    pfn = next_page(z, q, b)
    if pfn == NO_PFN:
        return None
    page_zeroed(z, q, b, pfn)
    return pfn


def test_it_goes_from_colour_to_colour_and_stops_at_four_fifths():
    z, q, b = made(32, 16)  # stride 3
    turns = []
    while wants_page(z, b):
        turns.append(turn(z, q, b))
    colours = [0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13]
    assert turns == [*colours, *[colour + 16 for colour in colours[:9]]]  # 25 = 32 * 4 / 5
    assert check(q, b) == []


def test_it_starts_again_below_two_thirds_only():
    z, q, b = made(30, 1)
    zero_until_asleep(z, q, b)
    assert b.zero_pages[0] == 24  # of 30
    for taken in range(1, 16):  # 24 - n zeroed, (30 - n) * 2 / 3 rounded down: 9 < 10 at n = 15, not before
        alloc_page(q, b, 0, True)
        assert wants_page(z, b) == (taken == 15)
    zero_until_asleep(z, q, b)
    assert (b.zero_pages[0], b.free_pages[0]) == (12, 15)
    wants = []
    for pfn in (24, 25, 26, 27, 28):  # 12 < (15 + m) * 2 / 3 first at m = 5: 13
        put_page(q, b, pfn, UNZEROED)
        wants.append(wants_page(z, b))
    assert wants == [False, False, False, False, True]


def test_before_it_ever_reached_the_high_mark_only_that_one_counts():
    z, q, b = made(30, 1)
    for _ in range(21):
        turn(z, q, b)
    assert wants_page(z, b)  # 21 is above 2/3 of 30, below 4/5


def test_a_page_that_is_being_zeroed_counts_as_in_use():
    z, q, b = made(30, 1)
    pfn = next_page(z, q, b)
    assert (pfn, b.free_pages[0], b.zero_pages[0]) == (0, 29, 0)
    page_zeroed(z, q, b, pfn)
    assert (b.free_pages[0], b.zero_pages[0]) == (30, 1)


def test_a_colour_whose_head_is_zeroed_is_passed_by():
    z, q, b = made(32, 16)
    zero_until_asleep(
        z, q, b
    )  # 25 turns: colours 0, 3, .. 8 have both pages zeroed; the walk stands at 25 * 3 % 16 = 11
    assert [turn(z, q, b) for _ in range(7)] == [27, 30, 17, 20, 23, 26, 29]
    pfn, _ = alloc_page(q, b, 3, False)
    put_page(q, b, pfn, UNZEROED)
    assert [turn(z, q, b) for _ in range(2)] == [None, 3]  # colour 0 has nothing to do


@pytest.mark.parametrize("marks", [((2, 3), (1, 2)), ((5, 4), (4, 5)), ((0, 0), (4, 5)), ((-1, 3), (4, 5))])
def test_marks_that_cannot_be_are_refused(marks):
    with pytest.raises(FirsttouchError, match="pagezero"):
        make_idlezero(*marks)


@settings(max_examples=80, deadline=None)
@given(
    nr_pages=st.integers(1, 80),
    nr_colours=st.sampled_from([1, 8, 16, 32]),
    steps=st.lists(st.tuples(st.sampled_from("aaAAAffttttZ"), st.integers(0, 10**6)), max_size=150),
)
def test_turns_and_marks_are_those_of_the_twin(nr_pages, nr_colours, steps):
    z, q, b = made(nr_pages, nr_colours)
    twin, taken = QueuesTwin(nr_pages, nr_colours), []
    stride = {1: 1, 8: 1, 16: 3, 32: 5}[nr_colours]
    for what, number in steps:
        if what in "aA":
            page, zeroed = twin.alloc(number % nr_colours, what == "A")
            assert alloc_page(q, b, number % nr_colours, what == "A") == (NO_PFN if page is None else page, zeroed)
            if page is not None:
                taken.append(page)
        elif what == "f" and taken:
            page = taken.pop(number % len(taken))
            put_page(q, b, page, UNZEROED)
            twin.free(page)
        elif what == "t":
            assert turn(z, q, b) == twin.turn(stride)
        elif what == "Z":
            zero_until_asleep(z, q, b)
            while twin.wants():
                twin.turn(stride)
        assert wants_page(z, b) == twin.wants()
    assert (b.free_pages[0], b.zero_pages[0]) == (twin.nr_free, twin.nr_zeroed)
    assert check(q, b, taken) == []


# -- in the event loop: 40 pages of one colour, one CPU. A turn takes 300 ns to zero, and 2 * 12 under the mutex


TURN_NS = 324
SMALL = machine(nr_cpus=1, memory_bytes=40 * PAGE_BYTES)


def with_colours(name, nr_colours=1, **sched):
    p = policy.load(name)
    return msgspec.structs.replace(
        p,
        percpu=msgspec.structs.replace(p.percpu, colours=nr_colours),
        sched=msgspec.structs.replace(p.sched, **sched),
    )


def frees_sleeps_and_writes(sleep_ns):
    """20 pages are written, freed, and after a sleep written again."""
    h = Hand()
    t, v = h.thread(), h.vma(0, 20)
    h.write(t, v, *range(20))
    h.unmap(t, 0, 20)
    h.sleep(t, sleep_ns)
    h.write(t, v, *range(20))
    return h.workload()


def test_the_machine_was_idle_before():
    h = Hand()
    h.thread()
    for name, nr_zeroed in ((IDLEZERO, 32), ("freebsd-6", 0)):
        world = replay(h.workload(), SMALL, with_colours(name))
        assert (world.buddy.zero_pages[0], world.buddy.free_pages[0]) == (nr_zeroed, 40)


@pytest.mark.parametrize("name", VARIANTS)
def test_it_zeroes_what_was_freed_while_the_cpu_is_idle(name):
    outcome = simulate(frees_sleeps_and_writes(1_000_000), SMALL, with_colours(name))
    # of 32 zeroed pages 20 were taken; back to 32 of 40: 20 turns in the sleep, 20 after the end
    assert (outcome.zeroed_hits, outcome.zeroed_misses) == (40, 0)
    assert outcome.zeroed_ahead_bytes == 40 * PAGE_BYTES
    assert outcome.background_ns == 40 * TURN_NS
    assert outcome.disturbances.wakeups == 2
    assert outcome.disturbances.sched_latency_ns == 0


@pytest.mark.parametrize(
    ("name", "quantum_ns", "late_ns"),
    [
        (VARIANTS[0], 100_000_000, 4 * TURN_NS - 1000),  # the fourth page is under way
        (VARIANTS[1], 100_000_000, 0),
        (VARIANTS[2], 100_000_000, 20 * TURN_NS - 1000),  # all that there is to do is within its slice
        (VARIANTS[2], 2_000, 7 * TURN_NS - 1000),  # the slice is over in its seventh turn
    ],
)
def test_who_wakes_while_it_zeroes_waits_as_preemption_has_it(name, quantum_ns, late_ns):
    outcome = simulate(frees_sleeps_and_writes(1000), SMALL, with_colours(name, quantum_ns=quantum_ns))
    assert outcome.disturbances.sched_latency_ns == late_ns


def test_a_page_left_half_zeroed_is_nobodys_until_it_is_done():
    h = Hand()
    t, v = h.thread(), h.vma(0, 20)
    h.write(t, v, *range(20))
    h.unmap(t, 0, 20)
    h.sleep(t, 100)  # in the first page
    h.write(t, v, *range(12))
    world = replay(h.workload(), SMALL, with_colours(VARIANTS[1]))
    assert world.buddy.free_pages[0] == 40
    assert world.buddy.zero_pages[0] == 32  # after the end it went on


def test_allocations_do_not_wake_it():
    h = Hand()
    t, v = h.thread(), h.vma(0, 40)
    h.write(t, v, *range(20))  # 12 of 20 free pages are zeroed: below two thirds
    h.sleep(t, 1_000_000)
    outcome = simulate(h.workload(), SMALL, with_colours(IDLEZERO))
    assert outcome.supply[-1][1] == 12 * PAGE_BYTES
    h.sleep(t, 301_000_000_000)  # it looks by itself after 300 s
    outcome = simulate(h.workload(), SMALL, with_colours(IDLEZERO))
    assert outcome.supply[-1][1] == 16 * PAGE_BYTES


def test_plain_requests_take_unzeroed_pages_first():
    h = Hand([1])
    t, f = h.thread(), h.vma(0, 20, 0)
    v = h.vma(20, 60)
    h.read(t, f, 0)
    h.write(t, v, *range(20, 60))
    outcome = simulate(h.workload(), SMALL, with_colours("freebsd-6"))
    assert outcome.faults_by_kind["zero_fill"] == outcome.zeroed_misses == 40
    assert not outcome.out_of_memory


def test_memory_that_is_used_up_is_an_outcome():
    h = Hand()
    t, v = h.thread(), h.vma(0, 41)
    h.write(t, v, *range(41))
    assert simulate(h.workload(), SMALL, with_colours("freebsd-6", 16)).out_of_memory


def test_a_read_of_fresh_memory_gets_a_page_of_its_own():
    h = Hand()
    t, v = h.thread(), h.vma(0, 4)
    h.read(t, v, 0)
    h.write(t, v, 0)
    outcome = simulate(h.workload(), SMALL, with_colours("freebsd-6"))
    assert outcome.faults_by_kind["zero_fill"] == outcome.faults == 1


# -- effects


def jobs(nr_threads, nr_pages=400, nr_rounds=12, io_ns=20_000):
    """Each thread writes its pages, frees them, and waits for I/O, again and again."""
    h = Hand([nr_threads])
    for i in range(nr_threads):
        t, v = h.thread(start_ns=7_000 * i), h.vma(512 * i, 512 * i + nr_pages)
        for _ in range(nr_rounds):
            h.write(t, v, *range(512 * i, 512 * i + nr_pages), think_ns=100)
            h.unmap(t, 512 * i, 512 * i + nr_pages)
            h.sleep(t, io_ns)
    return h.workload(lines_touched=20)  # cold ones cost 80 ns more than hot ones


@pytest.mark.parametrize(("nr_cpus", "nr_threads"), [(1, 1), (2, 2)])
def test_idle_zeroing_helps_a_build_and_with_broken_preemption_it_hurts(nr_cpus, nr_threads):
    on = machine(nr_cpus=nr_cpus, memory_bytes=600 * nr_threads * PAGE_BYTES)
    # pagezero has the mutex bounce between the CPUs: at 100 ns a time that takes back what it gains on two of them
    on = msgspec.structs.replace(on, cost=msgspec.structs.replace(on.cost, lock_handoff=Cost(ns=20)))
    workload = jobs(nr_threads)
    plain, check_, preempted, broken = (simulate(workload, on, policy.load(n)) for n in ("freebsd-6", *VARIANTS))
    assert plain.faults == check_.faults == preempted.faults == broken.faults
    assert max(check_.wall_ns, preempted.wall_ns) < plain.wall_ns < broken.wall_ns
    assert preempted.disturbances.sched_latency_ns == 0
    assert check_.disturbances.sched_latency_ns < 12 * nr_threads * TURN_NS + 200 * nr_threads
    assert broken.disturbances.sched_latency_ns > broken.wall_ns - plain.wall_ns
    assert broken.zeroed_hits > check_.zeroed_hits > 0  # it zeroes more, in time that was not idle


def test_the_gain_of_one_round_is_what_was_zeroed_in_its_idle_time():
    """One CPU, idle for 20 us a round: 61 pages and 236 ns of the next, whose end the thread waits for: 62 pages."""
    on = machine(nr_cpus=1, memory_bytes=600 * PAGE_BYTES)
    few, many = (
        [simulate(jobs(1, nr_rounds=n), on, with_colours(name)) for name in ("freebsd-6", IDLEZERO)] for n in (10, 20)
    )
    assert many[1].zeroed_hits - few[1].zeroed_hits == 10 * 62
    late_ns = 62 * TURN_NS - 20_000
    assert many[1].disturbances.sched_latency_ns - few[1].disturbances.sched_latency_ns == 10 * late_ns
    gains = [plain.wall_ns - zeroed.wall_ns for plain, zeroed in (few, many)]
    assert gains[1] - gains[0] == 10 * (62 * (300 - 80) - late_ns)


@pytest.mark.parametrize("name", VARIANTS)
def test_without_idle_time_it_costs_nothing(name):
    on = machine(nr_cpus=1, memory_bytes=2048 * PAGE_BYTES)
    workload = pft(1024 * PAGE_BYTES, threads=1, lines=1, reps=4, stride_bytes=PAGE_BYTES)
    plain, zeroed = simulate(workload, on, policy.load("freebsd-6")), simulate(workload, on, policy.load(name))
    assert zeroed.disturbances.sched_latency_ns == 0
    assert zeroed.zeroed_hits > 0
    assert zeroed.wall_ns < plain.wall_ns


def test_the_supply_is_within_the_marks_of_an_idle_machine():
    outcome = simulate(sparse(256, touched_ratio=0.5), machine(nr_cpus=2, memory_bytes=1024 * PAGE_BYTES),
                       policy.load(IDLEZERO))  # fmt: skip
    assert all(nr_bytes <= 1024 * PAGE_BYTES * 4 // 5 for _, nr_bytes in outcome.supply)


@pytest.mark.parametrize(
    ("section", "change", "field"),
    [
        ("zero", {"scrub": "scrubd-v6"}, "zero.scrub"),
        ("zero", {"init_on_free": True}, "zero.init_on_free"),
        ("superpage", {"thp": "always"}, "superpage"),
        ("zero", {"scrub": "pagezero", "scrub_start": 3}, "zero.scrub"),
    ],
)
def test_sections_that_contradict_each_other_are_refused(tmp_path, section, change, field):
    file = tmp_path / "mine.toml"
    values = "\n".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in change.items())
    file.write_text(f'extends = "freebsd-6"\n[{section}]\n{values}\n')
    with pytest.raises(FirsttouchError, match=field):
        policy.load(file)
    with pytest.raises(FirsttouchError, match="pagezero"):
        (tmp_path / "other.toml").write_text('extends = "linux-6.18"\n[zero]\nscrub = "pagezero"\n')
        policy.load(tmp_path / "other.toml")
