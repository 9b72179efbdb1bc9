"""Workloads made by rule: each file is one kind of program, one function that returns its Workload.

The same parameters always give the same events. `GENERATORS` names them all; each takes `page_bytes`, that of the
machine it will run on, and has defaults for everything but pft's bytes.
"""

from collections.abc import Callable

from firsttouch.workload import Workload
from firsttouch.workload.generators.ageing import aged, ageing
from firsttouch.workload.generators.build import BUILDS, Build, Program, build
from firsttouch.workload.generators.pft import PftRow, PftTest, pft, pft_row
from firsttouch.workload.generators.readers import readers
from firsttouch.workload.generators.server import server
from firsttouch.workload.generators.sparse import sparse
from firsttouch.workload.generators.storm import storm

GENERATORS: dict[str, Callable[..., Workload]] = {
    "ageing": ageing,
    "build": build,
    "pft": pft,
    "readers": readers,
    "server": server,
    "sparse": sparse,
    "storm": storm,
}

__all__ = [
    "BUILDS",
    "GENERATORS",
    "Build",
    "PftRow",
    "PftTest",
    "Program",
    "aged",
    "ageing",
    "build",
    "pft",
    "pft_row",
    "readers",
    "server",
    "sparse",
    "storm",
]
