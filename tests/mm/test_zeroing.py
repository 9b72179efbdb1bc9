"""Zeroing methods and drivers: who takes a block, and what that costs whom, in integers by hand."""

import math

import msgspec
import pytest

from firsttouch import machine as machines
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost, ZeroCost
from firsttouch.mm.zeroing import (
    Driver,
    Registry,
    Zeroing,
    ahead_gain_ns,
    break_even_lines,
    bte,
    driver_ns,
    method_ns,
    touch_ns,
    zero_ns,
    zero_table,
)


@pytest.fixture(scope="module")
def machine():
    """Pages of 16 KiB, lines of 128 bytes. A page takes 1000 ns hot and 4000 ns cold, and so do those of a block."""
    known = machines.load("vm-2cpu-zen4")
    cost = msgspec.structs.replace(known.cost, line_hot=Cost(ns=10), line_cold=Cost(ns=50))
    zero = {
        "temporal": ZeroCost([16384], [1000.0], [4000.0]),
        "nontemporal": ZeroCost([16384, 65536], [2000.0, 4000.0], [2000.0, 4000.0]),
    }
    return msgspec.structs.replace(known, page_bytes=16384, line_bytes=128, cost=cost, zero=zero)


def registry(*drivers):
    out = Registry()
    for driver in drivers:
        out.register(driver)
    return out


ANY = Driver("any", 0, 1 << 40, 100, 10**9, False)
LARGE = Driver("large", 1 << 20, 1 << 30, 200, 2 * 10**9, False)


def test_orders_that_the_bte_takes():
    # 60000 <= 16 KiB << k < 8 MiB: 64 KiB is order 2, 4 MiB order 8; 8 MiB, order 9, is one byte too large.
    engine = bte(128, polled=False)
    assert [k for k in range(12) if engine.takes(16384 << k)] == [2, 3, 4, 5, 6, 7, 8]
    assert not engine.takes(59_999)
    assert engine.takes(60_000)
    assert engine.takes((8 << 20) - 1)
    # With 4 KiB pages, from order 4 on.
    assert [k for k in range(12) if engine.takes(4096 << k)] == [4, 5, 6, 7, 8, 9, 10]


def test_a_driver_that_waits_occupies_the_cpu():
    # 4 MiB at 500 MB/s: 4194304 / 0.5 = 8388608 ns.
    assert driver_ns(bte(128, polled=False, setup_ns=1000), 4 << 20) == (8_389_608, 8_389_608)


def test_a_polled_driver_leaves_the_cpu_for_whole_ticks():
    engine = bte(128, polled=True, setup_ns=1000)
    # 8388608 ns are 8 ticks of 1 ms, and 388608 ns more, in which the daemon polls.
    assert driver_ns(engine, 4 << 20, 1_000_000) == Zeroing(389_608, 8_389_608)
    # 64 KiB take 131072 ns, less than a tick: the daemon polls throughout.
    assert driver_ns(engine, 64 << 10, 1_000_000) == Zeroing(132_072, 132_072)
    # Exactly 5 ticks.
    assert driver_ns(engine, 2_500_000, 1_000_000) == Zeroing(1000, 5_001_000)
    # 8388608 / 976562 = 8.6 ticks of the Altix: 8 * 976562 = 7812496.
    assert driver_ns(engine, 4 << 20) == Zeroing(8_389_608 - 7_812_496, 8_389_608)


def test_a_transfer_takes_the_nanosecond_it_has_begun():
    assert driver_ns(Driver("odd", 0, 10, 0, 3 * 10**9, False), 4).elapsed_ns == 2


def test_the_driver_registered_last_is_asked_first():
    assert registry(LARGE, ANY).choose(1 << 20) == ANY
    assert registry(ANY, LARGE).choose(1 << 20) == LARGE


def test_what_a_driver_declines_goes_to_the_next_and_then_to_the_cpu(machine):
    drivers = registry(bte(128, polled=False, setup_ns=0), LARGE)
    assert drivers.choose(2 << 20) == LARGE
    assert drivers.choose(1 << 19).name == "bte"
    assert drivers.choose(32 << 10) is None
    assert zero_ns(machine, "temporal", 2 << 20, drivers=drivers) == (200 + (1 << 20), 200 + (1 << 20))
    assert zero_ns(machine, "temporal", 1 << 19, drivers=drivers) == (1 << 20, 1 << 20)
    assert zero_ns(machine, "temporal", 32 << 10, drivers=drivers) == (8000, 8000)


def test_drivers_come_and_go():
    drivers = registry(ANY, LARGE)
    drivers.unregister("large")
    assert drivers.choose(1 << 20) == ANY
    with pytest.raises(FirsttouchError, match="'large'") as error:
        drivers.unregister("large")
    assert error.value.hint == "registered: any"
    drivers.unregister("any")
    assert drivers.choose(1 << 20) is None


@pytest.mark.parametrize(
    "change", [{"min_bytes": -1}, {"end_bytes": 0}, {"setup_ns": -1}, {"bytes_per_s": 0}, {"min_bytes": 1 << 40}]
)
def test_a_driver_that_could_never_work_is_named(change):
    with pytest.raises(FirsttouchError, match="zero driver any"):
        Registry().register(ANY._replace(**change))


def test_methods_hot_and_cold(machine):
    assert [method_ns(machine, "temporal", 16384, hot) for hot in (True, False)] == [1000, 4000]
    assert method_ns(machine, "temporal", 4 * 16384, False) == 16_000
    # Between 16 and 64 KiB, halfway in the logarithm: the geometric mean of 2000 and 4000.
    assert method_ns(machine, "nontemporal", 32768, False) == round(math.sqrt(2000 * 4000))
    with pytest.raises(FirsttouchError, match="'dcbz'") as error:
        method_ns(machine, "dcbz", 16384, False)
    assert "temporal, nontemporal" in error.value.hint


def test_tables_by_order(machine):
    table = zero_table(machine, "temporal", 4, drivers=registry(bte(128, polled=False, setup_ns=500)))
    assert table.cpu_ns.tolist() == [4000, 8000, 131_572, 262_644]  # 64 KiB at 500 MB/s: 131072
    assert table.elapsed_ns.tolist() == table.cpu_ns.tolist()
    assert zero_table(machine, "temporal", 2, hot=True).cpu_ns.tolist() == [1000, 2000]
    polled = zero_table(machine, "temporal", 3, drivers=registry(bte(128, polled=True)), tick_ns=100_000)
    assert polled.cpu_ns.tolist() == [4000, 8000, 32_072]  # 1000 + 131072 - 100000
    assert polled.elapsed_ns.tolist() == [4000, 8000, 132_072]


def test_what_the_user_pays_and_where_zeroing_ahead_breaks_even(machine):
    assert (touch_ns(machine.cost, 3, True), touch_ns(machine.cost, 3, False)) == (30, 150)
    # A cold line costs 40 ns more: 4000 ns of zeroing in the fault are worth 100 lines.
    assert break_even_lines(machine.cost, 4000) == 100
    assert [ahead_gain_ns(machine.cost, 4000, lines) for lines in (0, 1, 99, 100, 128)] == [4000, 3960, 40, 0, -1120]


def test_zeroing_ahead_always_pays_where_a_cold_line_costs_no_more(machine):
    cost = msgspec.structs.replace(machine.cost, line_cold=Cost(ns=10))
    assert break_even_lines(cost, 4000) == math.inf
    assert ahead_gain_ns(cost, 4000, 128) == 4000
