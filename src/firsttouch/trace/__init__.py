"""Traces: what a program did, one DuckDB file `NAME.ftt` that anyone can open with SQL."""

from firsttouch.trace.store import Trace, TraceWriter

__all__ = ["Trace", "TraceWriter"]
