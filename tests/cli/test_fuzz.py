"""Whatever a user types or hands over: one line and a hint, exit code 2 or the answer, never a traceback."""

import random
from pathlib import Path

import handmade
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner import assert_refused, run

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.units import parse_bytes, parse_ns

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NEAR_NAMES = st.lists(
    st.sampled_from(["linux-6.18", "+thp", "+mthp-64k", "-per-vma-lock", "+", "-", "+mthp-63k", "N", " ", "\n", "é"]),
    max_size=5,
).map("".join)
# Words of a command line hold no NUL and no lone surrogate.
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(WORDS | NEAR_NAMES)
def test_a_policy_name_is_known_or_refused(name: str) -> None:
    try:
        found = policy.load(name)
    except FirsttouchError as error:
        assert error.message and error.exit_code == 2
    else:
        assert found.name == name


@FEW
@given(WORDS | NEAR_NAMES)
def test_policies_show(name: str) -> None:
    ran = run("policies", f"--show={name}")
    if ran.code:
        assert_refused(ran)
    else:
        assert ran.out.startswith("name = ")


@FEW
@given(WORDS.filter(lambda word: word not in ("host", "vm-2cpu-zen4")))
def test_machines_show(name: str) -> None:
    assert_refused(run("machines", f"--show={name}"))


@given(st.text(max_size=20) | st.from_regex(r"\A\s*[0-9.]{1,9}\s*([kKmMgGtT]?i?[bB]?|ns|us|ms|s|min|h)\s*\Z"))
def test_sizes_and_times_are_numbers_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_ns):
        try:
            value = parse(text)
        except FirsttouchError as error:
            assert error.message
        else:
            assert isinstance(value, int) and value >= 0


@pytest.fixture(scope="module")
def whole(hand_trace: Path) -> bytes:
    return hand_trace.read_bytes()


def look_into(path: Path, machine: Path) -> None:
    """Every verb that reads a trace, on a file that may be damaged."""
    for words in (
        ("trace", "check", path),
        ("trace", "info", path),
        ("trace", "export", path, "-o", path.parent / "out"),
    ):
        ran = run(*words)
        assert ran.code in (0, 1, 2)
        if ran.code == 2:
            assert_refused(ran)
    ran = run("whatif", path, "--machine", machine, "--policies", "+thp")
    assert ran.code in (0, 2)
    if ran.code == 2:
        lines = ran.err.splitlines()
        assert "Traceback" not in ran.err and len(lines) <= 4


@FEW
@given(st.binary(max_size=5000))
def test_random_bytes_are_no_trace(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.ftt"
    path.write_bytes(data)
    for verb in (("trace", "info"), ("trace", "check"), ("whatif",), ("report",)):
        assert_refused(run(*verb, path))


@FEW
@given(st.floats(0, 0.999))
def test_a_truncated_trace_is_refused(tmp_path: Path, whole: bytes, part: float) -> None:
    path = tmp_path / "x.ftt"
    path.write_bytes(whole[: int(part * len(whole))])
    for verb in (("trace", "info"), ("trace", "check"), ("whatif",), ("report",)):
        assert_refused(run(*verb, path))


@settings(FEW, max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from(["bits", "hole"]))
def test_a_damaged_trace_is_read_or_refused(
    tmp_path: Path, whole: bytes, round_machine: Path, seed: int, how: str
) -> None:
    chance = random.Random(seed)
    data = bytearray(whole)
    if how == "bits":
        for _ in range(chance.choice([1, 5, 50])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:
        start, size = chance.randrange(len(data)), chance.choice([8, 4096, 100_000])
        data[start : start + size] = bytes(len(data[start : start + size]))
    path = tmp_path / "x.ftt"
    path.write_bytes(data)
    look_into(path, round_machine)


@settings(FEW, max_examples=15)
@given(
    st.dictionaries(
        st.sampled_from(["command", "wall_ns", "page_bytes", "host", "lost", "level", "minflt", "exit", "base_pages"]),
        st.none() | st.integers(-5, 10**12) | st.text(max_size=5) | st.lists(st.integers(0, 3), max_size=2),
        min_size=1,
    )
)
def test_a_trace_with_strange_meta_values_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, round_machine: Path, meta: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("meta")
    look_into(handmade.write_trace(folder / "x.ftt", number=20, **meta), round_machine)


@FEW
@given(st.binary(max_size=300))
def test_a_machine_file_of_random_bytes_is_refused(tmp_path: Path, hand_trace: Path, data: bytes) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(data)
    assert_refused(run("whatif", hand_trace, "--machine", path))
    assert_refused(run("machines", "--show", path))
