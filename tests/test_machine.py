"""Machine files: presets, round trip, and every way in which a file can be wrong."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch import machine as machines
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost, Machine, ZeroCost
from firsttouch.units import PMD_ORDER

PRESET = machines.load("vm-2cpu-zen4")
TREE: dict[str, Any] = msgspec.toml.decode(machines.encode(PRESET))


def changed(path: str, value: object) -> bytes:
    """The preset's file with one value changed; None takes it out."""
    tree = msgspec.toml.decode(machines.encode(PRESET))
    *parents, leaf = path.split("/")
    node = tree
    for parent in parents:
        node = node[parent]
    if value is None:
        del node[leaf]
    else:
        node[leaf] = value
    return msgspec.toml.encode(tree)


@pytest.mark.parametrize("name", machines.presets())
def test_each_preset_is_a_machine_and_survives_a_round_trip(name: str) -> None:
    machine = machines.load(name)
    assert machine.name == name
    assert machine.summary
    assert machine.fingerprint == ""  # of no host: it must not be taken for a measurement of this one
    assert machines.decode(machines.encode(machine), name) == machine


@pytest.mark.parametrize("name", machines.presets())
def test_each_preset_costs_more_for_more(name: str) -> None:
    machine = machines.load(name)
    assert len(machine.cost.alloc_large) > PMD_ORDER and len(machine.cost.unmap_large) > PMD_ORDER
    assert machine.cost.line_cold.ns > machine.cost.line_hot.ns
    for zero in machine.zero.values():
        assert zero.hot_ns == sorted(zero.hot_ns) and zero.cold_ns == sorted(zero.cold_ns)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema", 99, "schema is 99: this firsttouch reads up to 1"),
        ("nr_cpus", 0, "nr_cpus is 0: it must be at least 1"),
        ("nr_cpus", "two", "nr_cpus"),
        ("nr_cpus", None, "nr_cpus"),
        ("page_bytes", 5000, "page_bytes is 5000: it must be a power of two"),
        ("memory_bytes", -1, "memory_bytes is -1"),
        ("cost", None, "cost"),
        ("cost/trap", None, "trap"),
        ("cost/trap/ns", -1.0, "cost.trap is -1.0: a cost is a finite number of nanoseconds, 0 or more"),
        ("cost/trap/ns", float("nan"), "cost.trap is nan"),
        ("cost/trap/ns", float("inf"), "cost.trap is inf"),
        ("cost/trap/ns", "fast", "cost.trap.ns"),
        ("cost/trap/nanoseconds", 1, "nanoseconds"),
        ("cost/host_cold_page", {"ns": -5.0}, "cost.host_cold_page is -5.0"),
        ("cost/alloc_large", [0.0, -3.0], "cost.alloc_large is -3.0"),
        ("cost/alloc_large", [], "cost.alloc_large is []"),
        ("cost/unmap_large", [], "cost.unmap_large is []"),
        ("zero", {}, "the method `temporal` is needed"),
        ("zero/temporal", None, "the method `temporal` is needed"),
        ("zero/temporal/bytes", [], "not empty"),
        ("zero/temporal/bytes", [4096], "lists of one length"),
        ("zero/temporal/bytes", [65536, 4096, 2097152], "ascend"),
        ("zero/temporal/bytes", [4096, 4096, 2097152], "ascend"),
        ("zero/temporal/bytes", [0, 4096, 2097152], "positive"),
        ("zero/temporal/cold_ns", [0.0, 1.0, 2.0], "above 0"),
    ],
)
def test_a_wrong_value_is_named(path: str, value: object, said: str) -> None:
    with pytest.raises(FirsttouchError) as error:
        machines.decode(changed(path, value), "there.toml")
    assert "there.toml" in error.value.message
    assert said in error.value.message
    assert error.value.hint
    assert "\n" not in error.value.message


@pytest.mark.parametrize("text", [b"", b"schema = ", b"\xff\xfe", b"[cost]\n[cost]\n", b"schema = 1\n"])
def test_what_is_no_machine_at_all(text: bytes) -> None:
    with pytest.raises(FirsttouchError, match="machine x"):
        machines.decode(text, "x")


def test_an_older_file_without_the_newer_fields_still_reads() -> None:
    tree = msgspec.toml.decode(machines.encode(PRESET))
    for field in ("notes", "nr_nodes", "fingerprint"):
        tree.pop(field, None)
    tree["cost"].pop("host_cold_page", None)
    machine = machines.decode(msgspec.toml.encode(tree), "older")
    assert (machine.notes, machine.nr_nodes, machine.cost.host_cold_page) == ({}, 1, None)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(FirsttouchError) as error:
        machines.load("vm-2cpu-zen3")
    assert "vm-2cpu-zen4" in error.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FirsttouchError, match="there is no machine file") as error:
        machines.load(tmp_path / "mine.toml")
    assert "calibrate" in error.value.hint


def test_a_file_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(machines.encode(PRESET))
    assert machines.load(path) == machines.load(str(path)) == PRESET


def test_zeroing_between_the_sizes_that_were_measured() -> None:
    zero = ZeroCost(bytes=[4096, 65536], hot_ns=[100.0, 1600.0], cold_ns=[100.0, 6400.0])
    assert zero.ns(4096, hot=True) == 100
    assert zero.ns(65536, hot=True) == 1600
    assert zero.ns(16384, hot=True) == pytest.approx(400)  # proportional: straight in log-log
    assert zero.ns(16384, hot=False) == pytest.approx(800)  # half way in the log of both: sqrt(100 * 6400)
    assert zero.ns(131072, hot=True) == 3200  # beyond the ends: proportional
    assert zero.ns(64, hot=True) == pytest.approx(100 / 64)


def leaves(tree: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        return [leaf for key, item in tree.items() for leaf in leaves(item, (*path, key))] + ([path] if path else [])
    if isinstance(tree, list):
        return [leaf for i, item in enumerate(tree) for leaf in leaves(item, (*path, i))] + [path]
    return [path]


ANYTHING = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.text(max_size=5)
    | st.lists(st.integers(-1, 5000) | st.floats(), max_size=4)
    | st.dictionaries(st.sampled_from(["ns", "bytes", "x"]), st.integers(-1, 1), max_size=2)
)


@given(path=st.sampled_from(leaves(TREE)), value=ANYTHING)
def test_any_value_anywhere_is_a_machine_or_an_error_for_the_user(path: tuple[Any, ...], value: object) -> None:
    tree = msgspec.toml.decode(machines.encode(PRESET))
    node = tree
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    try:
        machine = machines.decode(msgspec.toml.encode(tree), "fuzz")
    except FirsttouchError as error:
        assert "fuzz" in error.message
    else:  # then it can be written, read, and asked
        assert machines.decode(machines.encode(machine), "again").nr_cpus == machine.nr_cpus
        assert all(zero.ns(12288, hot=False) > 0 for zero in machine.zero.values())


@given(cut=st.integers(0, 4000), junk=st.binary(max_size=8))
def test_a_torn_file_is_a_machine_or_an_error_for_the_user(cut: int, junk: bytes) -> None:
    text = machines.encode(PRESET)
    try:
        machines.decode(text[:cut] + junk + text[cut + len(junk) :], "torn")
    except FirsttouchError as error:
        assert "torn" in error.message


COSTS = st.builds(
    Cost,
    ns=st.floats(0, 1e9),
    low=st.none() | st.floats(0, 1e9),
    high=st.none() | st.floats(0, 1e9),
    source=st.text(max_size=20).filter(lambda text: "\x7f" not in text and text.isprintable()),
)


@given(cost=COSTS, cold=st.none() | COSTS, notes=st.dictionaries(st.text("ab", min_size=1), st.text("xyz \"'\n")))
def test_what_is_written_is_read_again(cost: Cost, cold: Cost | None, notes: dict[str, str]) -> None:
    costs = msgspec.structs.replace(PRESET.cost, trap=cost, host_cold_page=cold)
    machine: Machine = msgspec.structs.replace(PRESET, cost=costs, notes=notes)
    assert machines.decode(machines.encode(machine), "again") == machine
