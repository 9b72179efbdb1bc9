"""Ageing: a history by hand, what it does to high orders, and that what is counted is the program after it."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hand_workload import Hand, linux, recorded, small_machine
from handmade import machine
from test_pft_workload import assert_all_is_free

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.mm import simulate as simulate_module
from firsttouch.mm.counting import begin_counting
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload import SLEEP, TOUCH, UNMAP
from firsttouch.workload.generators import aged, ageing, pft, storm

PAGES = 14_000  # of 16,384
LONG, SHORT = 0, 1  # mappings of a history
DAYS = (0, 1, 2, 4, 8, 16)


def here(nr_cpus=1):
    return machine(nr_cpus=nr_cpus, memory_bytes=64 << 20)


def program():
    return pft(4 << 20, stride_bytes=4096)


def touched(w, long_lived):
    """(first, end) of touches, in order."""
    rows = (w.events.op == TOUCH) & (w.events.vma == (LONG if long_lived else SHORT))
    return list(zip(w.events.page[rows].tolist(), w.events.end[rows].tolist(), strict=True))


def test_a_history_by_hand():
    w = ageing(1000, days=3, long_ratio=0.01, life_days=2, run_pages=32)
    # 10 long-lived pages a day, each in the place of its day, which comes round after two days.
    long_pages = [page for start, end in touched(w, True) for page in range(start, end)]
    assert long_pages == [*range(20), *range(10)]
    # Short-lived pages follow: 990, 980, and 980 again, for on the third day the first day's 10 have gone.
    days = np.split(np.array(touched(w, False)), np.flatnonzero(np.array(touched(w, False))[:, 0] == 20)[1:])
    assert [int((day[:, 1] - day[:, 0]).sum()) for day in days] == [990, 980, 980]
    assert all(a[1] == b[0] for day in days for a, b in pairwise(day))
    assert all(1 <= size <= 32 for day in days for size in day[:, 1] - day[:, 0])
    assert int(np.count_nonzero(w.events.op == SLEEP)) == 3
    freed = w.events.op == UNMAP
    sizes = (w.events.end - w.events.page)[freed]
    assert int(sizes.sum()) == 990 + 980 + 980 + 10
    assert int(np.count_nonzero(freed)) == len(touched(w, False)) + 1


def test_long_lived_pages_come_between_short_lived_ones():
    w = ageing(4000, days=1, long_ratio=0.01, life_days=1)
    order = w.events.vma[w.events.op == TOUCH].tolist()
    changes = sum(a != b for a, b in pairwise(order))
    assert changes > 40  # 40 pages, few of them together


def at_night(monkeypatch, days, k=4, name="linux-2.6.10", **parameters):
    """Of the free pages that the program finds, the share in blocks of order `k` and up; and all.

    Under linux-2.6.10, whose CPUs keep few free pages to themselves.
    """
    found = []

    def look(world):
        counts = world.buddy.nr_free.sum(axis=(0, 1)) << np.arange(world.buddy.nr_free.shape[2])
        found.append((int(counts[k:].sum()) / int(counts.sum()), int(counts.sum())))
        begin_counting(world)

    monkeypatch.setattr(simulate_module, "begin_counting", look)
    replay(aged(program(), PAGES, days=days, **parameters), here(), policy.load(name))
    return found[0]


def test_high_orders_go_first(monkeypatch):
    left = {k: [at_night(monkeypatch, days, k)[0] for days in DAYS] for k in (2, 4, 6)}
    for shares in left.values():
        assert shares[0] == 1.0
        assert all(a > b for a, b in pairwise(shares))
    for low, high in pairwise(left.values()):
        assert all(a >= b for a, b in zip(low, high, strict=True))


@pytest.mark.parametrize("days", DAYS[1:])
@pytest.mark.parametrize("k", [2, 4, 6])
def test_about_as_many_blocks_are_left_as_if_pages_lay_by_chance(monkeypatch, days, k):
    share, free_pages = at_night(monkeypatch, days, k)
    untouched = 16_384 - PAGES
    left = PAGES * (1 - 0.005 * days) ** (1 << k)
    assert share == pytest.approx((untouched + left) / free_pages, abs=0.04)
    assert 16_384 - free_pages == pytest.approx(70 * days, abs=100)  # the rest is on the CPU's list


def test_without_long_lived_pages_memory_is_whole_again(monkeypatch):
    share, free_pages = at_night(monkeypatch, 8, 4, long_ratio=0.0)
    on_list = 16_384 - free_pages  # of the CPU: each page may break one block
    assert on_list <= 6 * 16
    assert share >= 1 - on_list * 16 / 16_384


def test_as_many_die_as_are_born(monkeypatch):
    _, after_life = at_night(monkeypatch, 4, life_days=4)
    _, much_later = at_night(monkeypatch, 12, life_days=4)
    assert abs(after_life - much_later) < 100


# -- what it is for


def zeroed_bytes(days, name="linux-2.6.10+scrubd-v6"):
    """Zeroed free memory that the program finds."""
    return simulate(aged(program(), PAGES, days=days), here(2), policy.load(name)).supply[0][1]


def test_the_zeroed_supply_falls_with_ageing():
    """scrubd-v6 zeroes blocks of order 4 and up, when a free has made one of order 6."""
    supply = [zeroed_bytes(days) for days in DAYS]
    assert supply[0] == 64 << 20
    assert all(a > b for a, b in pairwise(supply))
    assert supply[-1] < supply[0] // 4


def test_prezeroing_gains_less_on_aged_memory():
    gains = []
    for days in (0, 8, 20):
        plain, scrubbed = (
            simulate(aged(pft(40 << 20, stride_bytes=4096), PAGES, days=days), here(2), policy.load(name))
            for name in ("linux-2.6.10", "linux-2.6.10+scrubd-v6")
        )
        gains.append(plain.fault_ns / scrubbed.fault_ns)
    assert all(a > b for a, b in pairwise(gains))
    assert gains[-1] < 1.01 < gains[0]


def test_superpages_are_not_to_be_had_on_aged_memory():
    huge = [
        simulate(aged(pft(40 << 20, stride_bytes=4096), PAGES, days=d), here(), linux("+thp")).faults_by_kind["huge"]
        for d in (0, 16)
    ]
    assert huge[0] == 20
    assert huge[1] <= (16_384 - PAGES) // 512  # in what the history has not touched


# -- what is counted


@pytest.mark.parametrize("diffs", ["", "+thp", "+populate", "-per-vma-lock"])
@pytest.mark.parametrize("nr_cpus", [1, 2])
def test_no_day_at_all_changes_nothing(diffs, nr_cpus):
    workload = storm(9, at_once=2, pages=30, file_pages=16, copied_pages=5, worker_pages=8)
    plain, same = (simulate(w, small_machine(nr_cpus), linux(diffs)) for w in (workload, aged(workload, days=0)))
    if nr_cpus == 1:
        assert msgspec.structs.replace(same, lock_bytes=plain.lock_bytes) == plain  # one address space more
    else:  # the program's first thread may begin on another CPU
        assert same.faults_by_kind == plain.faults_by_kind
        assert same.wall_ns == pytest.approx(plain.wall_ns, rel=0.01)


def test_only_the_program_is_counted():
    plain, old = (simulate(w, here(), linux()) for w in (program(), aged(program(), PAGES, days=5)))
    for field in ("faults", "faults_by_kind", "user_ns", "peak_bytes", "untouched_bytes", "zeroed_misses"):
        assert getattr(old, field) == getattr(plain, field), field
    assert old.wall_ns == pytest.approx(plain.wall_ns, rel=0.02)  # the CPU's list is not empty
    assert old.wall_ns == old.user_ns + old.system_ns


def test_a_thread_begins_at_its_own_time_after_the_history():
    h = Hand()
    h.exit(h.thread(start_ns=500), think_ns=100)
    h.exit(h.thread(start_ns=50), think_ns=100)
    assert simulate(aged(h.workload(), PAGES, days=1), here(2), linux()).wall_ns == 600


def test_a_recording_can_be_aged():
    h = Hand()
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, *range(200), think_ns=5000)
    workload = recorded(h.workload())
    plain, old = (simulate(w, here(), linux()) for w in (workload, aged(workload, PAGES, days=3)))
    assert old.faults == plain.faults
    assert old.wall_ns == pytest.approx(plain.wall_ns, rel=0.01)  # the CPU's list is not empty
    assert old.system_ns == pytest.approx(plain.system_ns, rel=0.02)


@pytest.mark.parametrize("name", ["linux-6.18", "linux-2.6.10+scrubd-v6", "linux-2.6.10+zero-hot-pages"])
def test_all_is_free_in_the_end(name):
    assert_all_is_free(replay(aged(program(), PAGES, days=3), here(2), policy.load(name)))


def test_memory_that_is_too_small_for_the_history_is_an_outcome():
    assert simulate(aged(program(), 20_000, days=1), here(), linux()).out_of_memory


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"nr_pages": 0}, "nr_pages is 0"),
        ({"days": -1}, "days is -1"),
        ({"life_days": 0}, "life_days is 0"),
        ({"run_pages": 0}, "run_pages is 0"),
        ({"long_ratio": 0.05}, "long_ratio is 0.05"),
        ({"long_ratio": float("nan")}, "long_ratio is nan"),
    ],
)
def test_a_parameter_out_of_range_is_named(bad, said):
    with pytest.raises(FirsttouchError, match=said):
        ageing(**bad)
