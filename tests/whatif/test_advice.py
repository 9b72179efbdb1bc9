"""Advice is a function of outcomes; each case differs from the one above it in one thing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch.mm.outcome import Disturbances, Latency, Outcome
from firsttouch.whatif.advice import WORTH_RATIO, advise, best, saved_ratio, why_not

MIB = 1 << 20


def outcome(policy: str, wall_ms: float, **changes: object) -> Outcome:
    values: dict[str, object] = {
        "policy": policy, "available": "now", "apply": "", "faults": 1000, "faults_by_kind": {"zero_fill": 1000},
        "fault_ns": 1_000_000, "user_ns": 600_000_000, "system_ns": 100_000_000, "wall_ns": round(wall_ms * 1e6),
        "background_ns": 0, "peak_bytes": 1000 * MIB, "untouched_bytes": 0, "zeroed_hits": 0, "zeroed_misses": 0,
        "lock_wait_ns": {}, "latency": Latency(1, 2, 3, 4), "zeroed_in_fault_bytes": 0, "zeroed_ahead_bytes": 0,
        "copied_bytes": 0, "disturbances": Disturbances(0, 0, 0, 0), "out_of_memory": False, "supply": [],
    }  # fmt: skip
    return Outcome(**{**values, **changes})  # type: ignore[arg-type]


NOW = outcome("linux-6.18", 1000)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (outcome("A", 900), "Use A: it saves 100 ms, 10.0% of wall, for no more memory."),
        (
            outcome("A", 900, peak_bytes=1100 * MIB),
            "Use A: it saves 100 ms, 10.0% of wall, for 100 MiB (10.0%) more memory at the peak.",
        ),
        (
            outcome("A", 900, peak_bytes=900 * MIB),
            "Use A: it saves 100 ms, 10.0% of wall, with 100 MiB (10.0%) less memory at the peak.",
        ),
        (outcome("A", 995), "Nothing worth changing: the best you can have now, A, saves 0.5% of wall."),
        (outcome("A", 1001), "Nothing worth changing: no policy you can have now is faster."),
        (
            outcome("A", 900, out_of_memory=True),
            "Nothing worth changing: no policy you can have now is faster.",
        ),
        (
            # 10 % of wall may cost 40 % of memory, not 50 %
            outcome("A", 900, peak_bytes=1500 * MIB),
            "Nothing worth changing: A is faster, but it adds 500 MiB of memory to save 10.0% of wall.",
        ),
        (
            outcome("A", 900, background_ns=101_000_000),
            "Nothing worth changing: A is faster, but it adds 101 ms of CPU time to save 100 ms of wall.",
        ),
        (
            outcome("A", 900, available="patch"),
            "Nothing worth changing: no policy you can have now is faster; with a patched kernel, A would save 10.0%.",
        ),
        (
            outcome("A", 900, available="boot"),
            "Nothing worth changing: no policy you can have now is faster; after a reboot, A would save 10.0%.",
        ),
    ],
)
def test_one_alternative(other: Outcome, sentence: str) -> None:
    assert advise([NOW, other], NOW) == sentence


def test_of_two_that_save_nearly_the_same_the_smaller_is_recommended() -> None:
    fast, small = outcome("fast", 900, peak_bytes=1300 * MIB), outcome("small", 905, peak_bytes=1010 * MIB)
    assert best([NOW, fast, small], NOW) is small


def test_a_patch_is_mentioned_only_when_it_beats_what_one_can_have() -> None:
    mine, patch = outcome("A", 900), outcome("B", 895, available="patch")
    assert advise([NOW, mine, patch], NOW).endswith("for no more memory.")
    assert advise([NOW, mine, outcome("B", 800, available="patch")], NOW).endswith(
        "; with a patched kernel, B would save 20.0%."
    )


ALTERNATIVES = st.lists(
    st.builds(
        outcome,
        st.sampled_from(["A", "B", "C", "D"]),
        st.floats(1, 2000),
        available=st.sampled_from(["now", "boot", "patch", "pool"]),
        peak_bytes=st.integers(0, 4000).map(lambda mib: mib * MIB),
        background_ns=st.integers(0, 10**9),
        out_of_memory=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each.policy,
)


@given(ALTERNATIVES)
def test_what_is_recommended_is_worth_it(others: list[Outcome]) -> None:
    sentence = advise([NOW, *others], NOW)
    assert sentence.endswith(".") and "\n" not in sentence
    picked = best([other for other in others if other.available == "now"], NOW)
    assert sentence.startswith(f"Use {picked.policy}:" if picked else "Nothing worth changing")
    if picked is not None:
        assert saved_ratio(picked, NOW) >= WORTH_RATIO
        assert not picked.out_of_memory
        assert picked.background_ns <= NOW.wall_ns - picked.wall_ns
        assert picked.peak_bytes <= (1 + 4 * saved_ratio(picked, NOW)) * NOW.peak_bytes + 4 * MIB
    else:
        assert all(why_not(other, NOW) for other in others if other.available == "now")


def test_a_program_that_takes_no_time_has_nothing_to_gain() -> None:
    nothing = outcome("linux-6.18", 0)
    assert advise([nothing, outcome("A", 0)], nothing).startswith("Nothing worth changing")
