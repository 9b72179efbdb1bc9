"""Workloads made by rule: each file is one kind of program, one function that returns its Workload.

The same parameters always give the same events.
"""

from firsttouch.workload.generators.pft import PftRow, PftTest, pft, pft_row

__all__ = ["PftRow", "PftTest", "pft", "pft_row"]
