"""How measurements are taken apart, checked by hand; and one real calibration."""

import math

import pytest

from firsttouch import _jit
from firsttouch import machine as machines
from firsttouch.host import knobs, probe
from firsttouch.machine import Cost
from firsttouch.units import PMD_ORDER

if not _jit.JIT:
    pytest.skip("memory cannot be touched by address with the JIT off", allow_module_level=True)

from firsttouch.host import calibrate as c

FACTS = probe.HostFacts(
    kernel="6.18.0",
    cpu="A CPU",
    nr_cpus=4,
    memory_bytes=8 << 30,
    page_bytes=4096,
    line_bytes=64,
    l2_bytes=1 << 20,
    llc_bytes=16 << 20,
    virtual="none",
    thp="madvise",
    thp_defrag="madvise",
    mthp={"64kB": "never", "2048kB": "inherit"},
    fault_around_bytes=None,
    free_page_reporting=False,
    perf_event_paranoid=2,
    fingerprint="0123456789ab",
)
PLAN = c.Plan(
    page_bytes=4096,
    line_bytes=64,
    region_bytes=32 << 20,
    window_pages=16,
    orders=(4, 9),
    nr_threads=2,
    notes={},
)
RAW = {  # one round; ns
    "syscall": 150,
    "read_fault": 700,
    "write_fault": 1500,
    "unmap_page": 200,
    "populate_page": 1100,
    "file_fault": 1000,
    "file_fault_window": 2500,
    "cow_fault": 2000,
    "block_fault.4": 8000,
    "block_unmap.4": 900,
    "block_fault.9": 180_000,
    "block_unmap.9": 9000,
    "zero.temporal.4096.hot": 40,
    "zero.temporal.4096.cold": 300,
    "zero.temporal.65536.hot": 600,
    "zero.temporal.65536.cold": 5000,
    "zero.temporal.2097152.hot": 30_000,
    "zero.temporal.2097152.cold": 160_000,
    "zero_page": 300,
    "line_hot": 0.5,
    "line_cold": 6.0,
    "fault_threads": 1600,
    "fault_processes": 1550,
}
NO_RECORDING: dict[str, Cost | None] = {"basic": None, "full": None}


def made(rounds: int = 1, plan: c.Plan = PLAN, without: str = "", **changes: float) -> machines.Machine:
    values = {name: value for name, value in (RAW | changes).items() if not without or not name.startswith(without)}
    raw = {name: [float(value)] * rounds for name, value in values.items()}
    return c.decompose(raw, FACTS, plan._replace(notes={}), NO_RECORDING)


def test_each_cost_is_what_is_left_of_a_measurement() -> None:
    cost = made(3).cost
    assert cost.trap.ns == 700
    assert cost.alloc.ns == 500  # 1500 - 700 - 300
    assert cost.file_map.ns == 300  # 1000 - 700
    assert cost.map_page.ns == 100  # (2500 - 1000) / 15
    assert cost.copy_page.ns == 800  # 2000 - 700 - 500
    assert cost.alloc_large[4] == 2300  # 8000 - 700 - 5000
    assert cost.alloc_large[9] == 19_300  # 180000 - 700 - 160000
    assert (cost.unmap_large[4], cost.unmap_large[9]) == (900, 9000)
    assert cost.lock_handoff.ns == 50  # 1600 - 1550
    assert (cost.syscall.ns, cost.unmap_page.ns, cost.populate_page.ns) == (150, 200, 1100)
    assert (cost.line_hot.ns, cost.line_cold.ns) == (0.5, 6.0)
    assert cost.host_cold_page is None


def test_costs_add_up_again_to_the_faults_they_came_from() -> None:
    machine = made(3)
    cost, zero = machine.cost, machine.zero["temporal"]
    assert cost.trap.ns + cost.alloc.ns + zero.ns(4096, hot=False) == RAW["write_fault"]
    assert cost.trap.ns + cost.alloc.ns + cost.copy_page.ns == RAW["cow_fault"]
    for order in (4, 9):
        whole = cost.trap.ns + cost.alloc_large[order] + zero.ns(4096 << order, hot=False)
        assert whole == pytest.approx(RAW[f"block_fault.{order}"])


def test_orders_that_were_not_measured_are_drawn_between_those_that_were() -> None:
    machine = made()
    large = machine.cost.alloc_large
    assert len(large) == PMD_ORDER + 1
    assert large[0] == 500
    assert large[2] == pytest.approx(math.sqrt(500 * 2300), abs=0.01)  # half way from order 0 to order 4, in the log
    assert large == sorted(large)
    assert machine.notes["alloc_large"] == "orders measured: 4, 9; drawn between and beyond them: 1, 2, 3, 5, 6, 7, 8"


def test_a_host_without_any_large_order_says_that_they_are_derived() -> None:
    machine = made(plan=PLAN._replace(orders=()), without="block")
    assert "derived" in machine.notes["alloc_large"]
    assert machine.cost.alloc_large == sorted(machine.cost.alloc_large)
    assert machine.cost.unmap_large[9] == pytest.approx(200 * 512)
    machines.check(machine, "derived")


def test_differences_are_taken_within_a_round() -> None:
    # The machine slows down by half in the second round and by a third in the third; trap + alloc + zero holds in each.
    raw = {name: [float(value)] * 3 for name, value in RAW.items()}
    raw["read_fault"] = [700.0, 1050.0, 933.0]
    raw["write_fault"] = [1500.0, 2250.0, 2000.0]
    raw["zero_page"] = [300.0, 450.0, 400.0]
    alloc = c.decompose(raw, FACTS, PLAN._replace(notes={}), NO_RECORDING).cost.alloc
    # 500, 750, 667: median 667, quartiles half way to the others
    assert (alloc.ns, alloc.low, alloc.high) == (667, 583.5, 708.5)


@pytest.mark.parametrize(
    ("changes", "field", "below"),
    [
        ({"write_fault": 900}, "alloc", "-100 ns"),  # 900 - 700 - 300
        ({"file_fault": 650}, "file_map", "-50 ns"),
        ({"fault_threads": 1500}, "lock_handoff", "-50 ns"),
    ],
)
def test_a_negative_difference_becomes_0_and_says_so(changes: dict[str, float], field: str, below: str) -> None:
    cost = getattr(made(**changes).cost, field)
    assert cost.ns == 0
    assert f"came out at {below}, taken as 0" in cost.source


def test_a_negative_large_order_becomes_0_and_says_so() -> None:
    machine = made(**{"block_fault.9": 150_000})
    assert machine.cost.alloc_large[9] == 0
    assert "order 9 came out at -10.7 us, taken as 0" in machine.notes["alloc_large"]


def test_a_kernel_without_fault_around() -> None:
    cost = made(plan=PLAN._replace(window_pages=1)).cost
    assert cost.map_page.ns == 75  # 300 / 4
    assert "no page around" in cost.map_page.source


def test_a_kernel_without_populate() -> None:
    cost = made(populate_page=math.nan).cost
    assert cost.populate_page.ns == 800  # 500 + 300
    assert "no populate" in cost.populate_page.source


def test_one_cpu_has_no_handoff() -> None:
    cost = made(without="fault_").cost
    assert (cost.lock_handoff.ns, cost.lock_handoff.source) == (0, "not measured: one CPU")


def test_rounds_in_which_two_cpus_were_not_free_do_not_count() -> None:
    raw = {name: [float(value)] * 3 for name, value in RAW.items()}
    raw["fault_threads"] = [1600.0, math.nan, 1620.0]
    raw["fault_processes"] = [1550.0, 1550.0, 1550.0]
    handoff = c.decompose(raw, FACTS, PLAN, NO_RECORDING).cost.lock_handoff
    assert (handoff.ns, handoff.low, handoff.high) == (60, 55, 65)  # of 50 and 70
    raw["fault_processes"] = [math.nan] * 3
    handoff = c.decompose(raw, FACTS, PLAN, NO_RECORDING).cost.lock_handoff
    assert (handoff.ns, handoff.source) == (0, "not measured: two CPUs were never free at the same time")


def test_the_cost_of_recording_is_taken_as_it_was_measured() -> None:
    raw = {name: [float(value)] for name, value in RAW.items()}
    cost = c.decompose(raw, FACTS, PLAN, {"basic": Cost(ns=321.0, source="measured"), "full": None}).cost
    assert cost.record_basic == Cost(ns=321.0, source="measured")
    assert (cost.record_full.ns, cost.record_full.source) == (600.0, "typical, not measured here")


def test_the_machine_carries_the_facts_of_its_host() -> None:
    machine = made()
    assert (machine.fingerprint, machine.nr_cpus, machine.llc_bytes) == ("0123456789ab", 4, 16 << 20)
    assert "A CPU" in machine.summary and "bare metal" in machine.summary
    assert machines.decode(machines.encode(machine), "again") == machine


def test_slower_by_half_is_slower_by_half_throughout() -> None:
    slow = made(**{name: 1.5 * value for name, value in RAW.items()}).cost
    fast = made().cost
    for field in ("trap", "alloc", "file_map", "map_page", "copy_page", "lock_handoff", "line_cold"):
        assert getattr(slow, field).ns == pytest.approx(1.5 * getattr(fast, field).ns)
    assert slow.alloc_large == pytest.approx([1.5 * ns for ns in fast.alloc_large], rel=1e-3)


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert c.spreads({"read_fault": [90.0, 95.0, 100.0, 105.0, 110.0], "syscall": [1.0, 9.0]}) == {
        "read_fault": pytest.approx(0.10)  # (105 - 95) / 100; a system call decides nothing
    }


def test_noise_is_refused_by_name() -> None:
    c._refuse_noise({"read_fault": 0.10, "cow_fault": 0.02})
    with pytest.raises(c.Noisy, match="cow_fault varies by 11%") as error:
        c._refuse_noise({"read_fault": 0.10, "cow_fault": 0.11})
    assert error.value.exit_code == 1
    assert "--accept-noise" in error.value.hint


def test_accepted_noise_is_noted() -> None:
    raw = {name: [float(value)] * 3 for name, value in RAW.items()}
    raw["cow_fault"] = [1500.0, 2000.0, 2500.0]
    notes = c.decompose(raw, FACTS, PLAN._replace(notes={}), NO_RECORDING).notes
    assert "busy" in notes["noise"] and "cow_fault 25.0%" in notes["spread"]
    assert "noise" not in made(3).notes


@pytest.mark.parametrize(
    ("thp", "guarded", "orders"),
    [
        ("madvise", True, (4, 9)),
        ("madvise", False, (9,)),  # without root only what the kernel allows already
        ("never", False, ()),
    ],
)
def test_orders_that_can_be_measured(thp: str, guarded: bool, orders: tuple[int, ...]) -> None:
    facts = probe.HostFacts(**{field: getattr(FACTS, field) for field in FACTS.__struct_fields__} | {"thp": thp})
    guard = knobs.KnobGuard({}) if guarded else None
    assert c._plan(facts, guard, {}).orders == orders


def test_cold_memory_is_twice_the_last_level_cache_or_a_note_says_that_it_is_not() -> None:
    notes: dict[str, str] = {}
    assert c._plan(FACTS, None, notes).region_bytes == 32 << 20
    assert "cold" not in notes
    small = probe.HostFacts(**{f: getattr(FACTS, f) for f in FACTS.__struct_fields__} | {"llc_bytes": 256 << 20})
    assert c._plan(small, None, notes).region_bytes == 256 << 20
    assert "partly warm" in notes["cold"]


@pytest.mark.kernel
def test_this_host() -> None:
    before = knobs.mthp()
    said: list[float] = []
    machine = c.calibrate(quick=True, accept_noise=True, progress=lambda what, share: said.append(share))
    assert knobs.mthp() == before
    assert said == sorted(said) and said[-1] == 1.0
    machines.check(machine, "this host")
    assert machine.cost.trap.ns > 0 and machine.cost.syscall.ns > 0 and machine.cost.unmap_page.ns > 0
    for zero in machine.zero.values():
        assert zero.hot_ns == sorted(zero.hot_ns) and zero.cold_ns == sorted(zero.cold_ns)
