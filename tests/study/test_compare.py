"""Studies end to end: errors by hand, roles, what is left out or not covered; fits find what cells were made with."""

import msgspec
import pytest
from study_table import TABLE

from firsttouch import machine as machines
from firsttouch._jit import JIT
from firsttouch.study import compare as c
from firsttouch.study import fit as f
from firsttouch.study.ask import ask_of
from firsttouch.study.run import run_ask
from firsttouch.study.table import Table, decode, shipped


def table(text: str = TABLE, **changes: object) -> Table:
    (made,) = decode(text.encode(), "f")
    return msgspec.structs.replace(made, **changes)


def test_errors_roles_and_what_is_left_out():
    made = table()
    result = c.compare([made])
    (study,) = result.studies
    assert [(cell.row, cell.column, cell.role) for cell in study.cells] == [
        ("1", "rate", "fit"), ("1", "other", "predict"), ("2", "rate", "predict"),
    ]  # fmt: skip
    assert study.role == "mixed"
    assert [(gone.row, gone.reason) for gone in result.left_out] == [("3", "a copy")]
    seen = run_ask(ask_of(made, 0, "rate"))
    first = study.cells[0]
    assert first.model == 1024 / (seen.outcome.wall_ns / 1e9)  # 4 MiB in pages of 4 KiB
    assert first.error_ratio == first.model / 2.0 - 1
    errors = sorted(abs(cell.error_ratio) for cell in study.cells)
    assert (study.median_error, study.worst_error) == (errors[1], errors[2])
    assert [(one.role, one.cells) for one in result.summary] == [("fit", 1), ("predict", 2)]


def test_a_baseline_row_makes_cells_changes_in_percent():
    text = TABLE.replace('generator = "pft"', 'generator = "pft"\nbaseline_row = 0').replace('other = "cpu_s"\n', "")
    (study,) = c.compare([table(text)]).studies
    rates = [run_ask(ask_of(table(text), row, "rate")).outcome.wall_ns for row in (0, 1)]
    (cell,) = study.cells
    assert cell.model == pytest.approx(100 * (rates[0] / rates[1] - 1))


def test_changes_against_a_column_and_against_rows_of_values():
    text = TABLE.replace(
        'generator = "pft"', 'generator = "pft"\nprinted = "value"\nbaseline_column = "rate"\nrows = [0]'
    )
    text = text.replace('other = "cpu_s"', 'other = "pages_per_cpu_s"')
    (cell,) = c.compare([table(text)]).studies[0].cells
    assert (cell.column, cell.published) == ("other", 2.0)  # 4 - 2
    seen = run_ask(ask_of(table(text), 0, "rate")).outcome
    assert cell.model == pytest.approx(1024e9 / (seen.user_ns + seen.system_ns) - 1024e9 / seen.wall_ns)
    text = TABLE.replace('generator = "pft"', 'generator = "pft"\nprinted = "value"\nagainst = { 1 = 0 }')
    cells = c.compare([table(text.replace('other = "cpu_s"\n', ""))]).studies[0].cells
    assert [(cell.row, cell.published) for cell in cells] == [("2", 1.0)]  # 3 - 2


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("linux-2.6.10", "plan9", "plan9"),
        ("piii450x2", "piiii", "piiii"),
        ('"pft"', '"makeworld"', "no workload generator"),
        ('"pft"', '"PftTest"', "no workload generator"),
        ("4194304", "999999999999", "does not fit"),
        ("nr_bytes", "nr_octets", "no parameter 'nr_octets'"),
    ],
)
def test_what_is_not_there_is_found_out_at_run_time(old, new, word):
    result = c.compare([table(TABLE.replace(old, new))])
    assert result.studies == []
    assert word in result.not_covered[0].reason


def test_shrunk_runs_whose_pages_are_alike_have_the_same_rates():
    """The proof that `shrink` is allowed: all rates agree at half and at a quarter of the size."""
    big = shipped()["fastpath1_8p_2gb_ptelock"]
    whole = c.compare([big]).studies[0]
    for shrink in (2, 4):
        small = msgspec.structs.replace(big, model=msgspec.structs.replace(big.model, shrink=shrink))
        for one, other in zip(whole.cells, c.compare([small]).studies[0].cells, strict=True):
            assert one.model == pytest.approx(other.model, rel=0.005)


@pytest.mark.skipif(not JIT, reason="too many faults for plain Python")
@pytest.mark.parametrize("name", ["seq_8t", "seq_60t", "rand_8t", "rand_60t", "sparse_8t", "sparse_60t"])
def test_shrunk_readers_meet_as_those_of_the_whole_file(name):
    """A file of twice the pages comes to the same, its queues being as long."""
    small = shipped()[f"faultaround_x86_{name}"]
    large = msgspec.structs.replace(small, model=msgspec.structs.replace(small.model, shrink=small.model.shrink // 2))
    for one, other in zip(*(c.compare([made]).studies[0].cells for made in (small, large)), strict=True):
        assert one.model == pytest.approx(other.model, rel=0.01)


def test_a_fit_finds_the_constants_that_a_table_was_made_with():
    plan = f.FitPlan("piii450x2", [f.Constant("cost.trap", 500, 9000), f.Constant("cost.bus_page", 8000, 30000)])
    truth = f.with_constants(machines.load("piii450x2"), plan, [3300.0, 21000.0])
    scrubbed = '{ by_column = { rate = "linux-2.6.10", other = "linux-2.6.10+scrubd-v3" } }'
    text = TABLE.replace('fit = [{ rows = [0], columns = ["rate"] }]', "fit = [{}]").replace('"linux-2.6.10"', scrubbed)
    made = table(text)
    cells = c.compare([made], {"piii450x2": truth}).studies[0].cells
    rows = [[1, cells[0].model, repr(cells[1].model)], [2, cells[2].model, ""], [3, 1.0, "7"]]
    found = f.fit(plan, [msgspec.structs.replace(made, rows=rows)])
    assert found.cost.trap.ns == pytest.approx(3300, rel=0.03)
    assert found.cost.bus_page.ns == pytest.approx(21000, rel=0.03)
    assert found.cost.trap.source == "fitted to t"
