"""firsttouch: what the first touch of every page costs a program, and what would make it cheap.

>>> import firsttouch as ft
>>> ft.whatif(ft.Trace("run.ftt"), policies=["linux-6.18", "linux-6.18+thp"])  # doctest: +SKIP

Names are loaded when first used: importing `firsttouch` imports neither Numba nor DuckDB.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firsttouch import pool as pool
    from firsttouch._hook import hook as hook
    from firsttouch.errors import FirsttouchError as FirsttouchError
    from firsttouch.machine import Machine as Machine
    from firsttouch.mm.simulate import simulate as simulate
    from firsttouch.policy import Policy as Policy
    from firsttouch.record.recorder import record as record
    from firsttouch.trace.store import Trace as Trace
    from firsttouch.whatif import whatif as whatif

__version__ = "0.1.0"

_HOME = {
    "FirsttouchError": "firsttouch.errors",
    "Machine": "firsttouch.machine",
    "Policy": "firsttouch.policy",
    "Trace": "firsttouch.trace.store",
    "hook": "firsttouch._hook",
    "record": "firsttouch.record.recorder",
    "simulate": "firsttouch.mm.simulate",
    "whatif": "firsttouch.whatif",
}

__all__ = ["FirsttouchError", "Machine", "Policy", "Trace", "hook", "pool", "record", "simulate", "whatif"]  # noqa: PLE0604, RUF100


def __getattr__(name: str) -> Any:
    if name == "pool":
        return import_module("firsttouch.pool")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'firsttouch' has no attribute {name!r}")
