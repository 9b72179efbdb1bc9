"""The tables of a trace and the codes in them.

Times are nanoseconds since the recording began (at `meta.start_monotonic_ns` of CLOCK_MONOTONIC) by the clock of perf
events, which nobody sets or slews. Addresses are bytes.
Ranges are [start, end). Rows of one table are in time order except within one flush, where they are nearly so.
"""

SCHEMA_VERSION = 1

# touch.kind: bits
WRITE = 1
EXEC = 2
KERNEL = 4  # the touch came from kernel mode: a system call filled the page
PROTECTION = 8  # the page was mapped, but not for this access: copy on write, or a write after the zero page
FILE = 16  # the mapping has a file (or shared memory) behind it
UNKNOWN_ACCESS = 32  # recorded without error codes: read or write is not known

# map.flags: as in mmap(2)
MAP_SHARED = 1
MAP_PRIVATE = 2
MAP_STACK = 0x20000
MAP_NORESERVE = 0x4000

# map.prot: as in mmap(2)
PROT_READ = 1
PROT_WRITE = 2
PROT_EXEC = 4

NO_ID = -1  # map_id or stack_id: none known

# Columns and DuckDB types, in the order of the NumPy arrays that a writer takes.
TABLES: dict[str, dict[str, str]] = {
    "touch": {
        "t_ns": "BIGINT",
        "pid": "INTEGER",
        "tid": "INTEGER",
        "cpu": "SMALLINT",
        "vaddr": "UBIGINT",
        "ip": "UBIGINT",
        "kind": "UTINYINT",
        "map_id": "INTEGER",
        "stack_id": "INTEGER",
    },
    # `start` .. `end` is the kernel's whole VMA after the call (it may have been merged with a neighbour).
    "map": {
        "map_id": "INTEGER",
        "pid": "INTEGER",
        "t_ns": "BIGINT",
        "start": "UBIGINT",
        "end": "UBIGINT",
        "prot": "INTEGER",
        "flags": "INTEGER",
        "pgoff_bytes": "UBIGINT",
        "name": "VARCHAR",
    },
    # how: munmap | brk | mremap (then to_start .. to_end is where it went; pages stay mapped there)
    "unmap": {
        "pid": "INTEGER",
        "t_ns": "BIGINT",
        "start": "UBIGINT",
        "end": "UBIGINT",
        "how": "VARCHAR",
        "to_start": "UBIGINT",
        "to_end": "UBIGINT",
    },
    # advice: the number of madvise(2), e.g. 4 DONTNEED, 14 HUGEPAGE, 15 NOHUGEPAGE, 23 POPULATE_WRITE
    "advice": {"pid": "INTEGER", "t_ns": "BIGINT", "start": "UBIGINT", "end": "UBIGINT", "advice": "INTEGER"},
    # event: fork (a new process or thread `tid`; parent = the tid that made it) | exec | comm | exit
    #        | sleep (left the CPU because it waited) | preempt (left it while runnable) | run (is on a CPU again)
    #        | wake (level full: thread `parent` woke thread `tid`)
    "task": {
        "t_ns": "BIGINT",
        "pid": "INTEGER",
        "tid": "INTEGER",
        "event": "VARCHAR",
        "parent": "INTEGER",
        "comm": "VARCHAR",
    },
    "stack": {"stack_id": "INTEGER", "depth": "SMALLINT", "ip": "UBIGINT"},
    "symbol": {
        "pid": "INTEGER",
        "ip": "UBIGINT",
        "name": "VARCHAR",
        "file": "VARCHAR",
        "line": "INTEGER",
    },
    "meta": {"key": "VARCHAR", "value": "VARCHAR"},
}

# What a value of `meta` is when it is not null.
META_TYPES: dict[str, type] = {
    "command": list,
    "level": str,
    "base_pages": bool,
    "fault_around_bytes": int,
    "page_bytes": int,
    "host": dict,
    "start_monotonic_ns": int,
    "wall_ns": int,
    "user_ns": int,
    "system_ns": int,
    "minflt": int,
    "majflt": int,
    "unseen": int,
    "exit": int,
    "lost": int,
    "finished": bool,
}

# Keys of `meta` that a recording always has. Values are JSON text.
META_KEYS = (
    "schema",  # SCHEMA_VERSION
    "command",  # list of words
    "level",  # "basic" | "full"
    "base_pages",  # true: the program ran with THP disabled, so that every base page's first touch is seen
    "fault_around_bytes",  # of the recording kernel
    "page_bytes",
    "host",  # facts of the machine: kernel, cpu, cpus, memory_bytes, virtual
    "start_monotonic_ns",
    "start_unix_s",
    "wall_ns",  # of the program, from exec to exit; null when the recorder was killed
    "user_ns",
    "system_ns",  # of the program and its children that were waited for, by getrusage
    "minflt",
    "majflt",  # the kernel's own count for them; a check of `touch`
    "exit",  # exit status as a shell shows it (128 + signal)
    "lost",  # records that the kernel dropped because a ring was full
    "finished",  # true after an orderly end
)
