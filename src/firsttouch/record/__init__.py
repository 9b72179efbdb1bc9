"""Recording: the page faults of a running program, from the kernel's perf events to a trace on disk."""
