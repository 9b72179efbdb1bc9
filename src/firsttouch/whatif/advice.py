"""One sentence of advice, from outcomes alone.

A policy is *worth it* when it saves at least `WORTH_RATIO` of the wall time and costs less than it gains:

  A1  it does not run out of memory
  A2  the CPU time it adds (foreground and background) is less than the wall time it saves
  A3  the memory it adds is at most `MEMORY_PER_WALL` times the wall it saves, both as ratios, or under `SMALL_BYTES`

Of those whose saving is within `NEARLY` of the best, the one that needs least memory is recommended.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsttouch.mm.outcome import Outcome
from firsttouch.units import format_bytes, format_ns

WORTH_RATIO = 0.01
MEMORY_PER_WALL = 4.0
SMALL_BYTES = 4 << 20
NEARLY = 0.9


def saved_ns(outcome: Outcome, now: Outcome) -> int:
    """Wall time saved against `now`; negative when the policy costs time."""
    return now.wall_ns - outcome.wall_ns


def saved_ratio(outcome: Outcome, now: Outcome) -> float:
    """The same as a ratio of the wall time of `now`."""
    return saved_ns(outcome, now) / now.wall_ns if now.wall_ns else 0.0


def why_not(outcome: Outcome, now: Outcome) -> str:
    """The first reason not to recommend a policy, or "" when it is worth it."""
    if outcome.out_of_memory:
        return "it runs out of memory"
    gain_ns = saved_ns(outcome, now)
    if saved_ratio(outcome, now) < WORTH_RATIO:
        return f"it saves less than {WORTH_RATIO:.0%} of wall"
    if _cpu_ns(outcome) - _cpu_ns(now) > gain_ns:
        return f"it adds {format_ns(_cpu_ns(outcome) - _cpu_ns(now))} of CPU time to save {format_ns(gain_ns)} of wall"
    added_bytes = outcome.peak_bytes - now.peak_bytes
    if added_bytes > max(SMALL_BYTES, MEMORY_PER_WALL * saved_ratio(outcome, now) * now.peak_bytes):
        return f"it adds {format_bytes(added_bytes)} of memory to save {saved_ratio(outcome, now):.1%} of wall"
    return ""


def best(outcomes: Sequence[Outcome], now: Outcome) -> Outcome | None:
    """The policy to recommend among `outcomes`, or None when none of them is worth it."""
    worth = [outcome for outcome in outcomes if outcome.policy != now.policy and not why_not(outcome, now)]
    if not worth:
        return None
    most_ns = max(saved_ns(outcome, now) for outcome in worth)
    nearly = [outcome for outcome in worth if saved_ns(outcome, now) >= NEARLY * most_ns]
    return min(nearly, key=lambda outcome: (outcome.peak_bytes, -saved_ns(outcome, now)))


def advise(outcomes: Sequence[Outcome], now: Outcome) -> str:
    """One sentence: the best policy available now and what it costs, or that nothing is worth changing, and why."""
    at_once = [outcome for outcome in outcomes if outcome.available == "now"]
    later = [outcome for outcome in outcomes if outcome.available != "now"]
    pick, wish = best(at_once, now), best(later, now)
    if pick is None:
        sentence = _nothing(at_once, now)
    else:
        sentence = f"Use {pick.policy}: {_gain(pick, now)}, {_memory(pick, now)}"
    if wish is not None and saved_ratio(wish, now) - (saved_ratio(pick, now) if pick else 0.0) >= WORTH_RATIO:
        how = {"boot": "after a reboot", "patch": "with a patched kernel", "pool": "with the pool"}[wish.available]
        sentence += f"; {how}, {wish.policy} would save {saved_ratio(wish, now):.1%}"
    return sentence + "."


def _nothing(at_once: Sequence[Outcome], now: Outcome) -> str:
    others = [outcome for outcome in at_once if outcome.policy != now.policy and not outcome.out_of_memory]
    top = max(others, key=lambda outcome: saved_ns(outcome, now), default=None)
    if top is None or saved_ns(top, now) <= 0:
        return "Nothing worth changing: no policy you can have now is faster"
    if saved_ratio(top, now) < WORTH_RATIO:
        least = f"{saved_ratio(top, now):.1%} of wall"
        return f"Nothing worth changing: the best you can have now, {top.policy}, saves {least}"
    return f"Nothing worth changing: {top.policy} is faster, but {why_not(top, now)}"


def _gain(outcome: Outcome, now: Outcome) -> str:
    return f"it saves {format_ns(saved_ns(outcome, now))}, {saved_ratio(outcome, now):.1%} of wall"


def _memory(outcome: Outcome, now: Outcome) -> str:
    added_bytes = outcome.peak_bytes - now.peak_bytes
    if abs(added_bytes) < 0.005 * now.peak_bytes:
        return "for no more memory"
    ratio = abs(added_bytes) / now.peak_bytes if now.peak_bytes else 1.0
    size = f"{format_bytes(abs(added_bytes))} ({ratio:.1%})"
    return f"for {size} more memory at the peak" if added_bytes > 0 else f"with {size} less memory at the peak"


def _cpu_ns(outcome: Outcome) -> int:
    return outcome.user_ns + outcome.system_ns + outcome.background_ns
