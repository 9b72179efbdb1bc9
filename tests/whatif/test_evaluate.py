"""What-if on a trace whose outcomes can be counted by hand (see handmade.py)."""

import dataclasses
from pathlib import Path

import handmade
import msgspec
import pytest

from firsttouch.errors import FirsttouchError
from firsttouch.host import probe
from firsttouch.machine import Cost
from firsttouch.trace import Trace
from firsttouch.whatif import DEFAULT_POLICIES, evaluate, whatif
from firsttouch.whatif.evaluate import facts_of, full_name, load_policies, present_policy
from firsttouch.workload.from_trace import from_trace

MIB = 1 << 20


def test_faults_under_each_policy_are_those_counted_by_hand(hand_trace: Path) -> None:
    result = whatif(hand_trace, policies=list(handmade.FAULTS), machine=handmade.machine())
    assert {outcome.policy: outcome.faults for outcome in result.outcomes} == handmade.FAULTS
    assert {outcome.untouched_bytes for outcome in result.outcomes} == {0}


def test_the_base_is_always_there_and_each_policy_once(hand_trace: Path) -> None:
    result = whatif(hand_trace, policies=["+thp", "linux-6.18+thp"], machine=handmade.machine())
    assert [outcome.policy for outcome in result.outcomes] == ["linux-6.18+thp", "linux-6.18"]
    assert (result.now, result.now_is_host) == ("linux-6.18", False)


def test_the_default_policies_exist() -> None:
    assert [policy.name for policy in load_policies(None)] == list(DEFAULT_POLICIES)
    assert len(DEFAULT_POLICIES) == 13


def test_a_numpy_program_has_a_row_for_the_pool(hand_trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Trace(hand_trace) as trace:
        workload = from_trace(trace)
    monkeypatch.setattr(evaluate, "DEFAULT_POLICIES", ("linux-6.18",))
    for numpy_mms, names in (((), ["linux-6.18"]), ((0,), ["linux-6.18", "linux-6.18+pool"])):
        result = whatif(dataclasses.replace(workload, numpy_mms=numpy_mms), machine=handmade.machine())
        assert [outcome.policy for outcome in result.outcomes] == names
        assert {outcome.available for outcome in result.outcomes if "pool" in outcome.policy} <= {"pool"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("+thp", "linux-6.18+thp"),
        ("-per-vma-lock", "linux-6.18-per-vma-lock"),
        ("linux-6.18", "linux-6.18"),
        ("./-odd.toml", "./-odd.toml"),
        ("+mine.toml", "+mine.toml"),
    ],
)
def test_a_bare_diff_is_against_the_base(name: str, full: str) -> None:
    assert full_name(name) == full


@pytest.mark.parametrize("names", [[], [""], [" ", ""]])
def test_no_policy_at_all_is_a_mistake(names: list[str]) -> None:
    with pytest.raises(FirsttouchError, match="no policy"):
        load_policies(names)


def test_a_trace_without_touches_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.ftt"
    handmade.write_trace(path)
    import duckdb

    with duckdb.connect(str(path)) as db:
        db.execute("DELETE FROM touch")
    with pytest.raises(FirsttouchError, match="no page fault"):
        whatif(path, machine=handmade.machine())


FACTS = probe.facts()


@pytest.mark.parametrize(
    ("thp", "mthp", "name"),
    [
        ("never", {"64kB": "never", "2048kB": "inherit"}, "linux-6.18"),
        ("always", {"64kB": "never", "2048kB": "inherit"}, "linux-6.18+thp"),
        ("madvise", {"64kB": "never", "2048kB": "inherit"}, "linux-6.18+thp-madvise"),
        ("always", {"64kB": "never", "2048kB": "never"}, "linux-6.18"),
        ("never", {"64kB": "always", "2048kB": "inherit"}, "linux-6.18+mthp-64k"),
        ("always", {"64kB": "inherit", "2048kB": "madvise"}, "linux-6.18+thp-madvise+mthp-64k"),
        ("madvise", {"64kB": "inherit", "2048kB": "inherit"}, "linux-6.18+thp-madvise (advised: 64k)"),
        ("always", {}, "linux-6.18+thp"),
        ("", {}, "linux-6.18"),
    ],
)
def test_the_hosts_setting_has_a_name(thp: str, mthp: dict[str, str], name: str) -> None:
    facts = msgspec.structs.replace(FACTS, thp=thp, mthp=mthp, page_bytes=4096)
    policy = present_policy(facts)
    assert policy.name == name
    assert policy.superpage.mthp_madvise == ([4] if "advised" in name else [])


def test_on_the_host_savings_count_from_its_setting(hand_trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = msgspec.structs.replace(FACTS, thp="always", mthp={}, page_bytes=4096, fingerprint="here")
    monkeypatch.setattr(probe, "facts", lambda: facts)
    result = whatif(hand_trace, policies=["+mthp-64k"], machine=handmade.machine(fingerprint="here"))
    assert (result.now, result.now_is_host) == ("linux-6.18+thp", True)
    elsewhere = whatif(hand_trace, policies=["+mthp-64k"], machine=handmade.machine(fingerprint="there"))
    assert (elsewhere.now, elsewhere.now_is_host) == ("linux-6.18", False)


def test_json_has_the_fields_of_the_contract(hand_trace: Path) -> None:
    tree = whatif(hand_trace, policies=["+thp"], machine=handmade.machine()).to_builtins()
    assert {"touches", "lost"} <= tree["trace"].keys()
    assert tree["machine"]["name"] == "round"
    fields = {
        "policy", "available", "apply", "faults", "fault_ns", "user_ns", "system_ns", "wall_ns", "background_ns",
        "peak_bytes", "untouched_bytes", "zeroed_hits", "zeroed_misses", "lock_wait_ns",
    }  # fmt: skip
    assert all(fields <= outcome.keys() for outcome in tree["outcomes"])
    assert msgspec.json.decode(msgspec.json.encode(tree)) == tree


def warnings(tmp_path: Path, cold_ns: float | None = None, **meta: object) -> str:
    trace = handmade.write_trace(tmp_path / "w.ftt", **meta)
    cost = msgspec.structs.replace(handmade.machine().cost, host_cold_page=Cost(ns=cold_ns) if cold_ns else None)
    return "\n".join(whatif(trace, policies=["+thp"], machine=handmade.machine(cost=cost)).warnings)


def test_a_clean_recording_warns_of_nothing(tmp_path: Path) -> None:
    assert warnings(tmp_path) == ""


def test_answers_of_a_users_function_that_are_out_of_bounds_are_told(tmp_path: Path, hand_trace: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from firsttouch import hook\n\n@hook('window')\n"
        "def window(run, last, page, start, end, free_pages):\n    return -1\n"
    )
    told = whatif(hand_trace, policies=[f"linux-6.18+{file}"], machine=handmade.machine()).warnings
    assert [text for text in told if "answers of window were out of bounds" in text and "mine.py" in text]


def test_lost_records_are_told(tmp_path: Path) -> None:
    assert "1,234 records were lost" in warnings(tmp_path, lost=1234)


def test_what_level_basic_cannot_see_is_told(tmp_path: Path) -> None:
    assert "1,025 faults (50.0%) were taken inside system calls" in warnings(tmp_path, level="basic", minflt=2050)


def test_memory_that_the_host_had_to_back_is_told_from_memory_it_may_take(tmp_path: Path) -> None:
    # Faults come every 10 us. A fault here takes 500 + 300 + 300 (zeroing, cold) + 900 (recording) = 2 us.
    (tmp_path / "a").mkdir()
    assert "host-cold memory: faults came every 10.0 us at best, where one takes 2.00 us" in warnings(
        tmp_path / "a", 5000
    )
    assert "costs 20.0 us more" in warnings(tmp_path, 20_000)


def test_facts_count_what_the_kernel_counted_and_we_did_not(tmp_path: Path) -> None:
    with Trace(handmade.write_trace(tmp_path / "f.ftt", minflt=1030, majflt=2)) as trace:
        facts = facts_of(trace)
    assert (facts.touches, facts.unseen, facts.near_gap_ns) == (1025, 1032 - 1025, handmade.STEP_NS)
