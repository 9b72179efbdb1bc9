"""What the pool did: counts, and the time they saved by the costs of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from firsttouch.units import BASE_PAGE_BYTES, PMD_ORDER, format_bytes, format_ns

if TYPE_CHECKING:
    from firsttouch.machine import Machine


class Stats(msgspec.Struct, frozen=True):
    """Of one pool, since it was installed."""

    limit_bytes: int
    threshold_bytes: int  # smaller requests are not for the pool
    live_bytes: int
    peak_bytes: int  # the most that was live
    free_zeroed_bytes: int
    free_unzeroed_bytes: int
    free_unfaulted_bytes: int  # room that takes no memory
    nr_mallocs: int
    nr_callocs: int
    nr_frees: int
    nr_fallbacks: int  # requests of the pool's size that it had no room for
    hits: int  # requests for zeros served with memory zeroed ahead
    hot: int  # ... with memory freed moments ago, zeroed in cache
    misses: int  # ... that had to be zeroed, in whole or in part
    unfaulted: int  # ... with memory that was not faulted
    ahead_bytes: int  # zeroed ahead and handed out
    zeroed_bytes: int  # zeroed at allocation
    scrubbed_bytes: int  # zeroed by the scrubber
    populated_bytes: int
    trimmed_bytes: int  # given back to the kernel
    reused_bytes: int  # handed out already faulted, in requests that otherwise get fresh memory from the kernel
    nr_wakeups: int
    nr_naps: int
    nr_deferred: int  # frees that found the lock taken
    superpages: bool

    @property
    def held_bytes(self) -> int:
        """Memory that the pool keeps beyond what is in use."""
        return self.free_zeroed_bytes + self.free_unzeroed_bytes

    @property
    def faults_avoided(self) -> int:
        """Faults that the memory of `reused_bytes` would have taken: one a page, or one a superpage where allowed."""
        return self.reused_bytes // (BASE_PAGE_BYTES << (PMD_ORDER if self.superpages else 0))

    def saved_ns(self, machine: Machine) -> float:
        """Time of those faults by a machine's costs, less what zeroing at allocation took.

        The lines of memory zeroed ahead are cold for its user: that is taken off as well.
        """
        order = PMD_ORDER if self.superpages else 0
        block_bytes = BASE_PAGE_BYTES << order
        cost = machine.cost
        alloc_ns = cost.alloc_large[order] if order else cost.alloc.ns
        zero = machine.zero["temporal"]
        fault_ns = cost.trap.ns + alloc_ns + zero.ns(block_bytes, hot=False)
        cold_ns = (cost.line_cold.ns - cost.line_hot.ns) * self.ahead_bytes / machine.line_bytes
        zero_ns = zero.ns(block_bytes, hot=False) * self.zeroed_bytes / block_bytes
        return self.faults_avoided * fault_ns - zero_ns - max(0.0, cold_ns)

    def line(self, machine: Machine | None = None) -> str:
        """One line for the end of a program."""
        asked = self.hits + self.hot + self.misses + self.unfaulted
        parts = [
            f"{self.nr_mallocs + self.nr_callocs:,} arrays from the pool",
            f"{asked:,} of zeros, {self.hits:,} zeroed ahead ({format_bytes(self.ahead_bytes)}), {self.hot:,} in cache",
            f"{self.faults_avoided:,} faults avoided",
            f"{format_bytes(self.scrubbed_bytes)} zeroed in idle time",
            f"peak {format_bytes(self.peak_bytes)}",
        ]
        if self.nr_fallbacks:
            parts.append(f"{self.nr_fallbacks:,} did not fit")
        if machine is not None and self.faults_avoided:
            parts.append(f"about {format_ns(self.saved_ns(machine))} saved by the costs of {machine.name}")
        return "; ".join(parts)
