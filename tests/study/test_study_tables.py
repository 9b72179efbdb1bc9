"""The tables that ship, and the form: nothing lost in transcription, and every mistake is one line with a hint."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch.errors import FirsttouchError
from firsttouch.study.ask import ask_of
from firsttouch.study.table import Table, by_name, check, choose, decode, shipped

SHIPPED = shipped()
NR_ROWS, NR_VALUES = 486, 2855  # as counted in the collection they were transcribed from
TICK_NS = {"i386": 999_848, "ia64": 976_563}
GOOD = """
schema = 1
name = "t"
columns = ["threads", "rate"]
rows = [[1, 2.0], [2, "3.5"]]
[model]
machine = "altix8"
policy = "linux-2.6.10"
generator = "pft"
[model.parameters]
nr_bytes = 65536
threads = { from = "threads" }
[model.observe]
rate = "pages_per_wall_s"
"""


def test_every_published_table_is_there():
    assert len(SHIPPED) == 91
    assert sum(table.kind == "seed" for table in SHIPPED.values()) == 14
    assert sum(len(table.rows) for table in SHIPPED.values()) == NR_ROWS
    assert sum(len(row) for table in SHIPPED.values() for row in table.rows) == NR_VALUES


PFT = [table for table in SHIPPED.values() if table.workload.get("program") == "pft"]


@pytest.mark.parametrize("table", PFT, ids=lambda table: table.name)
def test_cpu_time_of_a_page_fault_test_is_a_whole_number_of_ticks(table):
    """The clock of these machines counts in ticks, so a wrong digit in a rate shows."""
    arch = "ia64" if table.workload["page_size"] == 16384 else "i386"
    tick_ns = 4_000_000 if table.date.startswith("2005-09") else TICK_NS[arch]
    for row in table.rows:
        values = dict(zip(table.columns, row, strict=True))
        if table.date.startswith("2021"):
            continue
        per_rep = table.workload.get("bytes_per_rep", values["Gb"] * 2**30)
        pages = per_rep * values["Rep"] / table.workload["page_size"]
        ticks = pages / values["flt_cpu_s"] * 1e9 / tick_ns
        printed = float(values["User_printed_s"]) + float(values["System_printed_s"])
        assert printed <= ticks * tick_ns / 1e9 * 1.00001 + 0.0021
        if ticks < 20_000:  # beyond that the printed rate has too few digits
            assert abs(ticks - round(ticks)) < 0.05, (table.name, row)


@pytest.mark.parametrize("table", SHIPPED.values(), ids=lambda table: table.name)
def test_each_table_asks_or_says_why_not(table):
    if table.model.uncovered:
        assert len(table.model.uncovered) > 20 and not table.model.observe
        return
    for row in filter(table.is_asked, range(len(table.rows))):
        for column in table.model.observe:
            ask_of(table, row, column)
    labels = [table.label(row) for row in range(len(table.rows))]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("schema = 1", "schema = 9", "schema is 9"),
        ('name = "t"', 'name = "../t"', "is called"),
        ("[2, ", "[2, 3, ", "row 1 has 3 values"),
        ('rate = "pages', 'rats = "pages', "'rats'"),
        ('{ from = "threads" }', '{ from = "thread" }', "name a column"),
        ('{ from = "threads" }', '{ from = "threads", is = { 1 = 1 } }', "says nothing of '2'"),
        ('{ from = "threads" }', '{ from = "threads", times = "x" }', "`times`"),
        ('machine = "altix8"', "machine = 3", "must be a name"),
        ('generator = "pft"', 'generator = "pft"\nfit = [{ rows = [2] }]', "no row 2"),
        ('generator = "pft"', 'generator = "pft"\nshrink = 0', "shrink"),
        ("[model.observe]", "[model.other]", "unknown field"),
        ('"3.5"', "[3]", "rows"),
        ("schema = 1", "schema = = 1", "TOML"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_line(old, new, word):
    with pytest.raises(FirsttouchError) as error:
        for table in decode(GOOD.replace(old, new, 1).encode(), "f.toml"):
            for row in range(len(table.rows)):
                ask_of(table, row, "rate")
    assert word.lower() in error.value.message.lower() or word == "TOML"
    assert "\n" not in error.value.message and error.value.hint


def test_values_are_resolved_by_row_and_column():
    (table,) = decode(GOOD.encode(), "f")
    assert dict(ask_of(table, 1, "rate").parameters) == {"nr_bytes": 65536, "threads": 2}
    assert table.published(1, "rate") == 3.5
    by = GOOD.replace('policy = "linux-2.6.10"', 'policy = { by_column = { rate = "a" } }')
    assert ask_of(decode(by.encode(), "f")[0], 0, "rate").policy == "a"


def test_a_list_of_tables_and_names():
    one = GOOD.replace("[model", "[table.model").replace("\nschema", "\n[[table]]\nschema")
    tables = decode((one + one.replace('"t"', '"u"')).encode(), "f")
    assert list(by_name(tables)) == ["t", "u"]
    with pytest.raises(FirsttouchError, match="two tables"):
        by_name(tables + tables)
    with pytest.raises(FirsttouchError) as error:
        choose(SHIPPED, ["seed_v2_altix_4gb_bas"])
    assert "seed_v2_altix_4gb_base" in error.value.hint


_WORDS = st.one_of(st.integers(-5, 5), st.floats(allow_nan=True), st.text(max_size=5), st.none(), st.booleans())
_KEYS = st.sampled_from(["from", "is", "times", "a"])
_TREES = st.recursive(_WORDS, lambda t: st.lists(t, max_size=3) | st.dictionaries(_KEYS, t, max_size=3))


@given(st.binary(max_size=200))
def test_any_bytes_are_tables_or_one_line(data):
    try:
        decode(data, "x")
    except FirsttouchError as error:
        assert "\n" not in error.message


@given(
    st.sampled_from(["schema", "columns", "rows", "flag", "machine", "model", "name"]),
    st.sampled_from(["machine", "policy", "parameters", "observe", "fit", "shrink", "baseline_row", "label", ""]),
    _TREES,
)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(field, inner, value):
    tree = msgspec.toml.decode(GOOD)
    if inner:
        tree["model"][inner] = value
    else:
        tree[field] = value
    try:
        table = msgspec.convert(tree, Table)
        check(table)
        for row in range(len(table.rows)):
            for column in table.model.observe:
                ask_of(table, row, column)
                assert math.isfinite(table.published(row, column))
    except FirsttouchError as error:
        assert error.hint
    except msgspec.ValidationError:
        pass
