"""Workloads made by rule: each file is one kind of program, one function that returns its Workload.

The same parameters always give the same events.
"""

from firsttouch.workload.generators.pft import PftRow, PftTest, pft, pft_row
from firsttouch.workload.generators.server import server
from firsttouch.workload.generators.sparse import sparse
from firsttouch.workload.generators.storm import storm

__all__ = ["PftRow", "PftTest", "pft", "pft_row", "server", "sparse", "storm"]
