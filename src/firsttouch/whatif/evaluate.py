"""A trace, replayed under one policy after another.

    trace -> workload (once) -> simulate (per policy, a few at a time) -> WhatIf

`linux-6.18` (every page by itself) is always among the outcomes: the recording was made under it, so its fault count
can be checked against the recorded one. Savings are against the outcome named by `WhatIf.now`: the policy the host is
set to, or `linux-6.18` when the machine is not this host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from firsttouch import policy as policies_
from firsttouch.errors import FirsttouchError
from firsttouch.host.present import BASE, host_machine, present_policy
from firsttouch.machine import Machine
from firsttouch.mm.outcome import Outcome
from firsttouch.policy import Policy
from firsttouch.units import format_ns
from firsttouch.whatif import advice

if TYPE_CHECKING:
    from firsttouch.trace.store import Trace
    from firsttouch.workload import Workload

DEFAULT_POLICIES = (
    BASE,
    *(
        f"{BASE}{diff}"
        for diff in (
            "+thp-madvise", "+thp", "+mthp-16k", "+mthp-32k", "+mthp-64k", "+mthp-128k", "+mthp-256k", "+mthp-512k",
            "+mthp-1024k", "+populate", "+prezero-4k", "+prezero-2m",
        )
    ),
)  # fmt: skip
MAX_WORKERS = 4
# A quarter of the faults that follow each other slower than a fault, plus this part of a host-cold one, is suspect.
COLD_PART = 0.6


class Progress(Protocol):
    """Told what goes on: a line worth keeping when `total` is 0, else step `done` of `total`."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """`text` has no newline."""


class TraceFacts(msgspec.Struct, frozen=True):
    """How the workload was recorded; None where it is not known."""

    name: str
    command: list[str]
    touches: int
    lost: int
    unseen: int | None  # faults that the kernel counted and the recording does not hold
    level: str | None  # basic | full
    base_pages: bool | None  # recorded with THP off
    finished: bool | None
    processes: int
    threads: int
    exit: int | None
    wall_ns: int | None
    minflt: int | None
    majflt: int | None
    near_gap_ns: float | None  # lower quartile of the time between faults on one page and the next


class WhatIf(msgspec.Struct, frozen=True):
    """Outcomes of one workload under several policies, in the order they were asked for."""

    trace: TraceFacts
    machine: Machine
    now: str  # the policy that savings are counted from
    now_is_host: bool  # the host is set to it; else it is only the base
    outcomes: list[Outcome]
    advice: str
    warnings: list[str]

    @property
    def reference(self) -> Outcome:
        """The outcome that savings are counted from."""
        return self.outcome(self.now)

    @property
    def base(self) -> Outcome:
        """The outcome under the recording's own policy."""
        return self.outcome(BASE)

    def outcome(self, policy: str) -> Outcome:
        """The outcome under a policy, by its full name."""
        return next(outcome for outcome in self.outcomes if outcome.policy == policy)

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of `firsttouch whatif --json`: docs/reference/json.md."""
        machine = {
            field: getattr(self.machine, field)
            for field in ("name", "summary", "nr_cpus", "page_bytes", "memory_bytes", "fingerprint")
        }
        tree: dict[str, Any] = msgspec.to_builtins(self)
        del tree["now_is_host"]
        return {
            **tree,
            "machine": machine,
            "now": {"policy": self.now, "is_host": self.now_is_host},
            "outcomes": [
                {**outcome, "saved_ns": self.reference.wall_ns - outcome["wall_ns"]} for outcome in tree["outcomes"]
            ],
        }


def whatif(
    source: Trace | Workload | Path | str,
    *,
    policies: Sequence[str] | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Replay a program under several policies.

    Parameters
    ----------
    source
        A trace, its path, or a workload made by a generator.
    policies
        Names as `firsttouch policies` lists them, or paths of policy files; `+thp` is short for `linux-6.18+thp`.
        Default: `DEFAULT_POLICIES`, and for a NumPy program the pool beneath NumPy on the kernel as it is set.
    machine
        What things cost. Default: the calibration of this host, measured quickly now if there is none yet.
    progress
        Told what goes on.

    Raises
    ------
    FirsttouchError
        For an unknown policy, an unreadable trace, or one without touches.
    """
    say = progress or _silent
    chosen = load_policies(policies)
    for policy in chosen:
        if policy.hooks:
            from firsttouch.mm.hooks import load_hooks

            load_hooks(policy.hooks)  # a mistake in a user's function is told before anything else is done
    if isinstance(source, str | Path):
        from firsttouch.trace.store import Trace

        with Trace(source) as trace:
            return whatif(trace, policies=policies, machine=machine, progress=progress)

    warnings: list[str] = []
    if machine is None:
        machine, warning = host_machine(say)
        warnings += [warning] if warning else []
    workload, facts = _workload(source)
    now, is_host = _present(machine, chosen)
    if policies is None and workload.numpy_mms:
        chosen.append(_with_pool(now))
    for policy in (now, policies_.load(BASE)):
        if policy.name not in [known.name for known in chosen]:
            chosen.append(policy)
    outcomes = _simulate(workload, machine, chosen, say)
    reference = next(outcome for outcome in outcomes if outcome.policy == now.name)
    warnings += _warnings(facts, machine)
    warnings += [
        f"{outcome.policy}: {nr:,} answers of {hook} were out of bounds, and brought inside"
        for outcome in outcomes
        for hook, nr in outcome.answers_bounded.items()
    ]
    return WhatIf(
        trace=facts,
        machine=machine,
        now=now.name,
        now_is_host=is_host,
        outcomes=outcomes,
        advice=advice.advise(outcomes, reference),
        warnings=warnings,
    )


def full_name(name: str) -> str:
    """A policy's name with the base put before a bare diff: `+thp` is `linux-6.18+thp`."""
    return BASE + name if re.match(r"[+-]", name) and not name.endswith(".toml") else name


def load_policies(names: Sequence[str] | None) -> list[Policy]:
    """The policies named, each once, in order. Raises FirsttouchError for an empty list and unknown names."""
    wanted = [full_name(name.strip()) for name in (DEFAULT_POLICIES if names is None else names) if name.strip()]
    if not wanted:
        raise FirsttouchError("no policy is named", "name some, e.g. +thp,+mthp-64k; see: firsttouch policies")
    chosen: dict[str, Policy] = {}
    for name in wanted:
        policy = policies_.load(name)
        chosen.setdefault(policy.name, policy)
    return list(chosen.values())


def facts_of(trace: Trace) -> TraceFacts:
    """How a trace was recorded."""
    meta = trace.meta
    touches, processes, threads = trace.sql("SELECT count(*), count(DISTINCT pid), count(DISTINCT tid) FROM touch")[0]
    unseen = meta.get("unseen")
    if unseen is None and meta["minflt"] is not None:
        unseen = max(0, int(meta["minflt"]) + int(meta["majflt"] or 0) - touches)
    return TraceFacts(
        name=trace.path.name,
        command=[str(word) for word in meta["command"] or []],
        touches=touches,
        lost=int(meta["lost"] or 0),
        unseen=unseen,
        level=meta["level"],
        base_pages=meta["base_pages"],
        finished=meta["finished"],
        processes=processes,
        threads=threads,
        exit=meta["exit"],
        wall_ns=meta["wall_ns"],
        minflt=meta["minflt"],
        majflt=meta["majflt"],
        near_gap_ns=_near_gap_ns(trace),
    )


def _near_gap_ns(trace: Trace) -> float | None:
    """Lower quartile of the time from a fault on anonymous memory to the same thread's next one, on the next page."""
    page_bytes = int(trace.meta["page_bytes"] or 4096)
    rows = trace.sql(
        f"""
        SELECT quantile_cont(gap, 0.25), count(*) FROM (
          SELECT t_ns - lag(t_ns) OVER w AS gap, vaddr // {page_bytes} = lag(vaddr) OVER w // {page_bytes} + 1 AS next
          FROM touch WHERE kind & 24 = 0 WINDOW w AS (PARTITION BY tid ORDER BY t_ns))
        WHERE next
        """
    )
    gap, number = rows[0]
    return float(gap) if number >= 100 else None


def _workload(source: Trace | Workload) -> tuple[Workload, TraceFacts]:
    from firsttouch.workload import Workload

    if isinstance(source, Workload):
        facts = TraceFacts(
            name=source.name, command=[], touches=source.nr_touches, lost=0, unseen=None, level=None, base_pages=None,
            finished=None, processes=len(source.mm_regions), threads=len(source.threads.first), exit=None, wall_ns=None,
            minflt=None, majflt=None, near_gap_ns=None,
        )  # fmt: skip
        return source, facts
    from firsttouch.workload.from_trace import from_trace

    facts = facts_of(source)
    if facts.touches == 0:
        raise FirsttouchError(
            f"{source.path} holds no page fault: there is nothing to replay",
            "record a program that touches memory, or a longer part of it",
        )
    return from_trace(source), facts


def _present(machine: Machine, chosen: Sequence[Policy]) -> tuple[Policy, bool]:
    """The policy savings are counted from, and whether it is the host's own."""
    if machine.fingerprint:
        from firsttouch.host import probe

        facts = probe.facts()
        if facts.fingerprint == machine.fingerprint:
            here = present_policy(facts)
            same = [policy for policy in chosen if policy.superpage == here.superpage and policy.zero == here.zero]
            same = [policy for policy in same if policy.fault_ahead == here.fault_ahead and policy.locks == here.locks]
            same = [policy for policy in same if policy.userspace == here.userspace]
            return (same[0] if same else here), True
    return policies_.load(BASE), False


def _with_pool(now: Policy) -> Policy:
    """The pool beneath NumPy, on a kernel that is set as `now` is."""
    diff = policies_.load(f"{BASE}+pool")
    return msgspec.structs.replace(
        now, name=f"{now.name}+pool", summary=diff.summary, available=diff.available, apply=diff.apply,
        userspace=diff.userspace,
    )  # fmt: skip


def _simulate(workload: Workload, machine: Machine, chosen: Sequence[Policy], say: Progress) -> list[Outcome]:
    from firsttouch import _jit

    if not _jit.is_compiled("simulate.run"):
        say("compiling the model to machine code (once after an installation, about half a minute)")
    from firsttouch.mm.simulate import simulate

    outcomes: dict[str, Outcome] = {}
    first, rest = chosen[0], chosen[1:]
    say(f"replaying under {first.name}", 0, len(chosen))
    outcomes[first.name] = simulate(workload, machine, first)  # alone: it may compile
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="firsttouch-replay") as pool:
        under = {pool.submit(simulate, workload, machine, policy): policy for policy in rest}
        try:
            for future in as_completed(under):
                outcomes[under[future].name] = future.result()
                say(f"replayed under {under[future].name}", len(outcomes), len(chosen))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[policy.name] for policy in chosen]


def _warnings(facts: TraceFacts, machine: Machine) -> list[str]:
    """What a reader of the numbers must know first."""
    out = []
    if facts.finished is False:
        out.append("the recording was cut short; what came before is complete to the last second")
    if facts.lost:
        out.append(f"{facts.lost:,} records were lost while recording; the real numbers are higher")
    if facts.base_pages is False:
        out.append("recorded with huge pages on: touches within a huge page were not seen, so savings are understated")
    if facts.level == "basic" and facts.unseen:
        share = facts.unseen / (facts.unseen + facts.touches)
        out.append(f"{facts.unseen:,} faults ({share:.1%}) were taken inside system calls: only root can see them")
    cold = machine.cost.host_cold_page
    if cold is not None and cold.ns > 0:
        usual_ns = _usual_gap_ns(machine, facts.level)
        if facts.near_gap_ns is not None and facts.near_gap_ns > usual_ns + COLD_PART * cold.ns:
            out.append(
                f"host-cold memory: faults came every {format_ns(facts.near_gap_ns)} at best, where one takes "
                f"{format_ns(usual_ns)} here; run the program twice and record the second run"
            )
        else:
            out.append(
                f"the hypervisor takes idle memory back: a page it must supply again costs {format_ns(cold.ns)} more"
            )
    return out


def _usual_gap_ns(machine: Machine, level: str | None) -> float:
    """A zero-fill fault on warm memory, and what recording adds to it."""
    cost = machine.cost
    recording_ns = cost.record_full.ns if level == "full" else cost.record_basic.ns
    return cost.trap.ns + cost.alloc.ns + machine.zero["temporal"].ns(machine.page_bytes, hot=False) + recording_ns


def _silent(text: str, done: int = 0, total: int = 0) -> None:
    """Say nothing."""
