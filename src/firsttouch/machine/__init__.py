"""Machines: what things cost and how big they are. A TOML file each; presets ship, `calibrate` measures the host's."""

from __future__ import annotations

import difflib
import math
from importlib import resources
from pathlib import Path

import msgspec

from firsttouch import _toml
from firsttouch.errors import FirsttouchError

MACHINE_SCHEMA = 1


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cost in nanoseconds: the median, the interval it was seen in, and where it is from."""

    ns: float
    low: float | None = None
    high: float | None = None
    source: str = ""


class ZeroCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one zeroing method costs: for blocks of `bytes[i]`, in cache (`hot_ns[i]`) or not (`cold_ns[i]`)."""

    bytes: list[int]
    hot_ns: list[float]
    cold_ns: list[float]
    source: str = ""
    leaves_cold: bool = False  # what it zeroed is in no cache afterwards; of `nontemporal` that is always so

    def ns(self, nr_bytes: int, hot: bool) -> float:
        """Cost of zeroing a block of `nr_bytes`: interpolated in log-log, proportional beyond the ends."""
        costs = self.hot_ns if hot else self.cold_ns
        if len(costs) == 1 or nr_bytes <= self.bytes[0]:
            return costs[0] * nr_bytes / self.bytes[0]
        if nr_bytes >= self.bytes[-1]:
            return costs[-1] * nr_bytes / self.bytes[-1]
        i = next(i for i in range(1, len(costs)) if nr_bytes <= self.bytes[i])
        x0, x1 = math.log(self.bytes[i - 1]), math.log(self.bytes[i])
        y0, y1 = math.log(costs[i - 1]), math.log(costs[i])
        return math.exp(y0 + (y1 - y0) * (math.log(nr_bytes) - x0) / (x1 - x0))


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs that make up a fault and its aftermath; `docs/model/costs.md` says how each is measured."""

    trap: Cost  # a read fault that the zero page serves: trap, look-up, one entry, return
    alloc: Cost  # order 0: allocate, charge, put on lists (a write fault less trap and zeroing)
    alloc_large: list[float]  # [order] the same for one block of 2**order pages, entries included; [0] unused
    map_page: Cost  # each further entry that the same fault writes
    file_map: Cost  # a read fault on a cached file page, window of one, less trap
    copy_page: Cost  # copying one base page on write (a COW fault less trap and alloc)
    unmap_page: Cost  # munmap or exit, per mapped base page, freeing it
    unmap_large: list[float]  # [order] the same for one block of 2**order pages; [0] unused
    populate_page: Cost  # MADV_POPULATE_WRITE, per base page, zeroing included
    line_hot: Cost  # the user's first touch of a line of a page that was zeroed just now
    line_cold: Cost  # the same of a page that was zeroed long ago, or past the caches
    lock_handoff: Cost  # a lock, or a counter, that another CPU had last
    record_basic: Cost  # what recording adds to one fault
    record_full: Cost  # the same with tracepoints
    syscall: Cost  # entry and exit of a trivial system call
    # one page moved between free lists under the zone lock; part of `alloc` in an uncontended fault
    zone_page: Cost = Cost(ns=12.0, source="typical: two list links and counters, both lines in cache")
    # parts of `trap` that page-table locks are held for; they show only where threads contend
    table_walk: Cost = Cost(ns=30.0, source="typical: three levels, in cache")
    table_install: Cost = Cost(ns=30.0, source="typical: one entry, counters, a list")
    # making a page-table page, and giving it back, each take this beyond the page itself: where they are charged at all
    # (policy zero.table_pages), memory is touched here and there, and nothing that the kernel looks at is in a cache
    table_page: Cost = Cost(ns=0.0, source="typical: no figure known")
    scan_entry: Cost = Cost(ns=4.0, source="typical: one entry and its page's flags read, in order")
    lock_waiter: Cost = Cost(ns=0.0, source="typical: queued spin locks, whose waiters do not disturb the holder")
    # several nodes, and several CPUs at one memory
    remote_page: Cost = Cost(ns=0.0, source="typical: one node")  # zeroing a base page of another node takes longer by
    remote_line: Cost = Cost(ns=0.0, source="typical: one node")  # a line in no cache, of another node, costs more by
    remote_handoff: Cost = Cost(ns=0.0, source="typical: one node")  # a hand-off from another node's CPU costs more by
    bus_page: Cost = Cost(ns=0.0, source="typical: no limit known")  # least time from page to page that a node zeroes
    line_waiter: Cost = Cost(ns=0.0, source="typical: requests for a line queue")  # as lock_waiter, without a lock
    # what a fault leaves to its user besides cold lines
    write_drain: Cost = Cost(ns=0.0, source="typical: hidden")  # until stores past the caches have reached memory
    sync_page: Cost = Cost(ns=0.0, source="typical: coherent")  # code is mapped: instruction cache made coherent
    tlb_reload: Cost = Cost(ns=0.0, source="typical: a fault loads no entries")  # one that a neighbour's displaced
    host_cold_page: Cost | None = None  # extra, per base page that the hypervisor must back first


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine: sizes, counts, and costs."""

    schema: int
    name: str
    summary: str
    nr_cpus: int
    page_bytes: int
    line_bytes: int
    l2_bytes: int  # per CPU
    llc_bytes: int  # shared
    memory_bytes: int
    cost: Costs
    zero: dict[str, ZeroCost]  # by method: temporal, nontemporal, rep_stosb, ...
    nr_nodes: int = 1
    held_bytes: int = 0  # of memory_bytes: held by the kernel and by others from before the program, and never free
    fingerprint: str = ""  # of the host it was measured on; "" for a preset
    notes: dict[str, str] = {}  # what to know about some of the values: derived, noisy, not measured

    @property
    def free_bytes(self) -> int:
        """Memory that a program may get."""
        return self.memory_bytes - self.held_bytes


def load(name_or_path: str | Path) -> Machine:
    """A preset by name, or a machine file by path (anything with a `/` or ending in `.toml`).

    Raises FirsttouchError naming the field, its value and the reason when a file does not describe a machine.
    """
    text = str(name_or_path)
    if "/" in text or text.endswith(".toml"):
        path = Path(text)
        if not path.is_file():
            raise FirsttouchError(f"there is no machine file {path}", "make one: firsttouch calibrate -o FILE")
        return decode(path.read_bytes(), str(path))
    names = presets()
    if text not in names:
        near = difflib.get_close_matches(text, names, 3)
        raise FirsttouchError(
            f"there is no machine {text!r}",
            f"did you mean {' or '.join(near)}?" if near else "see: firsttouch machines",
        )
    return decode((resources.files(__name__) / "presets" / f"{text}.toml").read_bytes(), text)


def presets() -> list[str]:
    """Names of the machines that ship, sorted."""
    folder = resources.files(__name__) / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def decode(toml: bytes, where: str) -> Machine:
    """A machine from TOML text; `where` names it in errors."""
    try:
        machine = msgspec.toml.decode(toml, type=Machine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FirsttouchError(f"machine {where}: {error}", "compare with: firsttouch machines --show NAME") from None
    check(machine, where)
    return machine


def encode(machine: Machine) -> bytes:
    """TOML text of a machine."""
    return _toml.encode(machine)


def check(machine: Machine, where: str) -> None:
    """Raise FirsttouchError for a machine that cannot be: newer schema, no CPU, a negative cost, ragged tables."""

    def bad(field: str, value: object, why: str) -> FirsttouchError:
        return FirsttouchError(
            f"machine {where}: {field} is {value}: {why}", "mend the file, or measure: firsttouch calibrate"
        )

    if machine.schema > MACHINE_SCHEMA:
        raise bad("schema", machine.schema, f"this firsttouch reads up to {MACHINE_SCHEMA}")
    for field in ("nr_cpus", "nr_nodes", "page_bytes", "line_bytes", "l2_bytes", "llc_bytes", "memory_bytes"):
        if getattr(machine, field) < 1:
            raise bad(field, getattr(machine, field), "it must be at least 1")
    if not 0 <= machine.held_bytes < machine.memory_bytes:
        raise bad("held_bytes", machine.held_bytes, f"it must be 0 or more, and less than {machine.memory_bytes}")
    if machine.page_bytes & (machine.page_bytes - 1):
        raise bad("page_bytes", machine.page_bytes, "it must be a power of two")
    for field in Costs.__struct_fields__:
        value = getattr(machine.cost, field)
        if value == []:
            raise bad(f"cost.{field}", value, "it needs a cost for each order")
        costs = value if isinstance(value, list) else [] if value is None else [value.ns]
        for cost in costs:
            if not (math.isfinite(cost) and cost >= 0):
                raise bad(f"cost.{field}", cost, "a cost is a finite number of nanoseconds, 0 or more")
    for method, zero in machine.zero.items():
        if not zero.bytes or not len(zero.bytes) == len(zero.hot_ns) == len(zero.cold_ns):
            raise bad(f"zero.{method}", zero.bytes, "bytes, hot_ns and cold_ns must be lists of one length, not empty")
        if sorted(set(zero.bytes)) != zero.bytes or zero.bytes[0] < 1:
            raise bad(f"zero.{method}.bytes", zero.bytes, "sizes must be positive and ascend")
        for cost in [*zero.hot_ns, *zero.cold_ns]:
            if not (math.isfinite(cost) and cost > 0):
                raise bad(f"zero.{method}", cost, "a cost is a finite number of nanoseconds above 0")
    if "temporal" not in machine.zero:
        raise bad("zero", list(machine.zero), "the method `temporal` is needed")
