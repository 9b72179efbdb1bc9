"""What is stored of fits is of the machines that ship, and fast studies come to what they came to before."""

import math
from pathlib import Path

import msgspec
import pytest

from firsttouch import machine as machines
from firsttouch._jit import JIT
from firsttouch.study import compare as c
from firsttouch.study import fit as f
from firsttouch.study.table import shipped

PRESETS = Path(machines.__file__).parent / "presets"
PLANS = f.plans()


def source_of(machine, name):
    where, field = name.split(".")
    if name == f.HELD:
        return machine.notes["held_bytes"]
    return getattr(machine.cost, field).source if where == "cost" else machine.zero[field].source


@pytest.mark.parametrize("name", PLANS)
def test_a_stored_fit_is_of_the_machine_that_ships(name):
    plan, machine = PLANS[name], machines.load(name)
    stored = msgspec.json.decode((PRESETS / f"{name}.residuals.json").read_bytes(), type=f.Residuals)
    assert 1 <= len(plan.constant) <= 8
    assert stored.tables == [table.name for table in f.tables_of(plan, list(shipped().values()))]
    for constant in plan.constant:
        assert source_of(machine, constant.name) == "fitted to " + ", ".join(stored.tables)
        value = stored.constants[constant.name]
        zero = machine.zero.get(constant.name.removeprefix("zero."))
        assert value == (f.get(machine, constant.name) if zero is None else zero.cold_ns[0])
    assert set(stored.left_out) <= set(stored.tables)
    assert len(stored.cells) >= len(plan.constant)
    assert all(math.isfinite(cell.error_ratio) and cell.role == "fit" for cell in stored.cells)


@pytest.mark.parametrize("name", machines.presets())
def test_every_constant_of_a_machine_says_where_it_is_from(name):
    machine = machines.load(name)
    for field in type(machine.cost).__struct_fields__:
        cost = getattr(machine.cost, field)
        if isinstance(cost, machines.Cost):
            assert cost.source, (name, field)
    assert all(zero.source for zero in machine.zero.values())


# Median and worst error in percent. A change of the model that moves one of them has to say so here.
EXPECTED = {
    "v3_8p_4gb_base": (1.4, 4.6),
    "seed_v2_altix_1gb_prezero": (5.0, 5.6),
    "seed_v6_cachelines": (1.2, 5.3),
    "seed_v2_altix_4gb_prezero": (5.3, 19.4),
    "seed_v6_i386_10rep_prezero": (1.8, 5.3),
    "seed_v6_i386_1rep_prezero": (1.1, 1.7),
    "prefault2_8p_4gb_prefault": (2.1, 19.2),
    "gorman_pft_4_0_memcg": (1.3, 5.1),
    "v15_altix_1gbx10_base": (0.6, 1.8),
    "faultaround_x86_seq_32t": (6.8, 18.0),
    "faultaround_x86_sparse_8t": (0.2, 9.8),
}


@pytest.mark.skipif(not JIT, reason="too many faults for plain Python")
@pytest.mark.parametrize("name", EXPECTED)
def test_fast_studies_come_to_what_they_came_to_before(name):
    (study,) = c.compare([shipped()[name]]).studies
    assert (round(100 * study.median_error, 1), round(100 * study.worst_error, 1)) == EXPECTED[name]


def test_costs_of_blocks_change_in_proportion():
    machine = machines.load("ampere_altra")
    plan = f.FitPlan("ampere_altra", [f.Constant("cost.trap", 1, 1e6, ["cost.alloc_large"])])
    twice = f.with_constants(machine, plan, [2 * machine.cost.trap.ns])
    assert f.get(twice, "cost.alloc_large") == pytest.approx(2 * machine.cost.alloc_large[0])
    assert twice.cost.alloc_large[4] == pytest.approx(2 * machine.cost.alloc_large[4])
    assert twice.cost.unmap_large == machine.cost.unmap_large
