"""Recording: the page faults of a running program, from the kernel's perf events to a trace on disk."""

from firsttouch._verbs import make_callable

make_callable(__name__, "firsttouch.record.recorder")
