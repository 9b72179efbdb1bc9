"""Policies: what the kernel does. Data only; the mechanisms are in `mm`.

A policy is written `base+diff+diff` (or `base-diff`): a base preset, then short diffs against it. A diff whose file
name has an `N` takes a number there: `+fault-around-N`, `+mthp-Nk`. Presets are TOML files in `presets/`.
"""

from __future__ import annotations

import difflib
import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.units import PMD_ORDER, PMD_PAGES

Available = Literal["now", "boot", "patch", "pool"]
Switch = Literal["never", "madvise", "always"]


class Zero(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pages come to be zero."""

    method: str = "temporal"  # in the fault; a key of machine.zero
    extent_bytes: int = 0  # larger blocks than a page are zeroed in contiguous runs of this size; 0: page by page
    extent_method: str = "rep_stosb"  # by this method
    # zero free blocks ahead of use, when a CPU is idle; None below is the version's own default (docs/model/scrub.md)
    scrub: Literal["none", "scrubd", "scrubd-v2", "scrubd-v3", "scrubd-v4", "scrubd-v6", "scrubd-v8", "pagezero"] = (
        "none"
    )
    scrub_method: str = "nontemporal"
    scrub_driver: Literal["cpu", "bte"] = "cpu"  # an engine that zeroes blocks it takes beside the CPUs
    scrub_start: int | None = None  # order (V8: fraction of 1024): a free that merges so far wakes the daemon
    scrub_stop: int | None = None  # order (V8: fraction of 1024): it zeroes blocks down to here, highest first
    scrub_load: int | None = None  # 1-minute load average from which on it does not run
    scrub_pages_per_s: int = 0  # it zeroes no more than this; 0: as fast as it can
    scrub_from_s: int = 0  # daily window, seconds after midnight; equal ends: all day
    scrub_until_s: int = 0
    # FreeBSD's pagezero begins below the low mark and ends at the high one: [numerator, denominator] of the free pages
    pagezero_low: tuple[int, int] = (2, 3)
    pagezero_high: tuple[int, int] = (4, 5)
    # page-table pages: paid for with the machine's trap; allocated and zeroed by the first fault of each; from a cache
    # that each CPU keeps zeroed
    table_pages: Literal["in-trap", "zeroed", "cached"] = "in-trap"
    table_cache_pages: int = 50
    zero_page: bool = True  # a read fault on anonymous memory maps a page of zeros that all share
    zero_hot_pages: bool = False  # idle CPUs zero the single pages that they freed last
    init_on_free: bool = False  # zero at free, never at allocation


class FaultAhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many pages one fault maps."""

    fault_around_bytes: int = 65536  # around a read fault on a file; one page disables it
    # anticipatory prefaulting of anonymous memory: a version's rule, its caps, and how many faults in order it needs
    prefault: Literal["none", "v2", "v13", "2005-03", "adaptive"] = "none"
    prefault_max_order: int = 3
    prefault_max_pages: int = 14
    prefault_min_run: int = 0
    # which pages in memory beside the faulting one a fault maps: as fault_around_bytes says, or a BSD's window
    neighbours: Literal["linux", "netbsd", "freebsd"] = "linux"
    behind_pages: int = 3
    ahead_pages: int = 4
    sequential_ahead_pages: int = 7
    scaling: Literal["none", "floor", "half", "ceil"] = "none"  # windows are as many bytes as with pages of 4 KiB
    fills_shared: bool = False  # the window's pages of shared memory are allocated and zeroed, too
    after_copies: bool = False  # neighbours are mapped after a copy on write, too
    fork_maps: bool = True  # fork copies page tables; else a child finds what it has by faults
    populate: bool = False  # MADV_POPULATE_WRITE on every anonymous writable mapping when it is made


class Superpage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Transparent huge pages and their smaller kin."""

    thp: Switch = "never"  # order 9
    mthp_always: list[int] = []  # orders 2..8 that every anonymous mapping may use
    mthp_madvise: list[int] = []  # orders that only advised mappings may use
    reservations: bool = False  # FreeBSD: a frame is set aside at a region's first touch, and promoted when full
    use_zero_page: bool = True  # a read fault may map the huge zero page
    at_first_touch: bool = True  # faults map superpages; false: they come by promotion only
    # a daemon promotes regions of base pages: in order of address as khugepaged does, or by access coverage
    promote: Literal["never", "khugepaged", "coverage"] = "never"
    promote_min_ratio: float = 0.0  # of a region's pages that must be mapped
    promote_max_none: int = 511  # pages of a region that may be unmapped (max_ptes_none)
    promote_max_shared: int = 256  # pages that may be shared (max_ptes_shared)
    promote_scan_pages: int = 4096  # entries that it looks at in one wake (pages_to_scan)
    promote_sleep_ms: int = 10_000  # from one wake to the next (scan_sleep_millisecs)
    promote_alloc_sleep_ms: int = 60_000  # after an allocation that failed (alloc_sleep_millisecs)
    # with this part of memory in use the daemon breaks superpages up and takes back pages never touched, until only the
    # other is; 0: never
    recover_above_ratio: float = 0.0
    recover_to_ratio: float = 0.7
    promote_in_fault_ratio: float = 0.0  # a fault that maps this part of a region promotes it; 0: never


class Locks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fault locks."""

    per_vma: bool = True  # false: every fault takes the address space's mmap_lock for reading
    # page tables: a lock for each page-table page; one lock an address space, taken twice a fault; atomic entries; one
    # mutex for all page queues and mappings of the system
    page_table: Literal["split", "mm", "atomic", "global"] = "split"
    # FreeBSD: what guards the lists of who maps a page: one lock; an array of locks, hashed by superpage frame; a lock
    # for each frame. And whether an exit frees emptied chunks of such entries together, after it has dropped that lock
    pv_lists: Literal["one", "hashed", "superpage"] = "hashed"
    pv_hash_locks: int = 256
    pv_batch: bool = False


class Percpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per-CPU lists of free pages in front of the buddy allocator; or one queue for each colour of page instead."""

    rules: Literal["linux-6.18", "linux-2.6.10", "page-queues"] = "linux-6.18"
    batch_pages: int = 0  # 0: as the kernel computes it from the zone's size
    colours: int = 32  # of page-queues


class Sched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUs."""

    quantum_ns: int = 3_000_000  # a thread keeps the CPU this long when others wait
    # when a daemon that zeroes in idle time leaves the CPU to a thread: between two blocks; in the middle of one; only
    # at the end of its own time slice
    idle_yield: Literal["check", "at-once", "slice-end"] = "check"
    # where a forked thread starts: on any idle CPU; filling its parent's node first; on the nodes in turn; on its
    # parent's CPU, from whose queue idle CPUs pull it
    placement: Literal["idle", "pack", "spread", "balance"] = "idle"


class Userspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the program does otherwise than it was recorded."""

    # NumPy's arrays from here up lie in memory that a pool beneath it keeps and zeroes ahead (firsttouch run); 0: none
    pool_threshold_bytes: int = 0
    pool_start_pages: int = 0  # that starting the pool touches: its code, its tables, the scrubber's stack
    pool_start_ns: int = 0  # CPU time that starting it takes, faults not counted


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the kernel does, section by section; `available` and `apply` say how a user gets it."""

    name: str
    summary: str = ""
    available: Available = "now"
    apply: str = ""  # the command that applies it on a running kernel
    kernel: Literal["linux", "freebsd-13"] = "linux"  # whose fault path, objects and locks
    hooks: str = ""  # a Python file whose decorated functions decide; see mm/hooks.py
    zero: Zero = Zero()
    fault_ahead: FaultAhead = FaultAhead()
    superpage: Superpage = Superpage()
    locks: Locks = Locks()
    percpu: Percpu = Percpu()
    sched: Sched = Sched()
    userspace: Userspace = Userspace()


class Preset(msgspec.Struct, frozen=True):
    """One entry of `firsttouch policies`: its name as one types it, and what it means."""

    name: str
    summary: str
    extends: str  # the base it is a diff against, "" for a base
    available: str
    apply: str


_HOOK_FILE = re.compile(r"\+([^+]*\.py)(?=[+-]|$)")

_RANK: dict[str, int] = {"now": 0, "boot": 1, "pool": 2, "patch": 3}


def load(name_or_path: str | Path) -> Policy:
    """The policy written `base+diff+diff`, or in a TOML file (anything with a `/` or ending in `.toml`).

    A file may say `extends = "base+diff"`; what it does not set is taken from there. Raises FirsttouchError for unknown
    names (with the nearest), fields, values, and sections that contradict each other.
    """
    text = str(name_or_path)
    if not _HOOK_FILE.search(text) and ("/" in text or text.endswith(".toml")):
        path = Path(text)
        if not path.is_file():
            raise FirsttouchError(f"there is no policy file {path}", "see the presets: firsttouch policies")
        tree = _decode(path.read_bytes(), text)
        tree.setdefault("name", path.stem)
        base = tree.pop("extends", "")
        return _finish(_merge(_tree(base), tree) if base else tree, text)
    return _finish(_tree(text), text)


def presets() -> list[Preset]:
    """Every base and diff that ships, bases first."""
    out = []
    for stem, tree in sorted(_files().items(), key=lambda item: (item[0].startswith(("+", "-")), item[0])):
        out.append(
            Preset(
                stem,
                tree.get("summary", ""),
                tree.get("extends", ""),
                tree.get("available", "now"),
                tree.get("apply", ""),
            )
        )
    return out


def _files() -> dict[str, dict[str, Any]]:
    folder = resources.files(__name__) / "presets"
    entries = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): _decode(entry.read_bytes(), entry.name) for entry in entries}


def _decode(text: bytes, where: str) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = msgspec.toml.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FirsttouchError(f"policy {where}: {error}", "it is not TOML") from None
    return tree


def _tree(name: str) -> dict[str, Any]:
    """The merged tables of `base+diff-diff`. A base may itself hold a dash (linux-2.6.10): the longest known wins."""
    files = _files()
    bases = sorted((stem for stem in files if not stem.startswith(("+", "-"))), key=len, reverse=True)
    base = next((b for b in bases if name == b or name.startswith((b + "+", b + "-"))), None)
    if base is None:
        raise _unknown(name, re.split(r"\+", name)[0], bases)
    tree = {**files[base], "name": base}
    rest = name[len(base) :]
    while rest:
        own = _HOOK_FILE.match(rest)
        if own:
            if not Path(own[1]).is_file():
                raise FirsttouchError(f"there is no policy file {own[1]}", "see docs/howto/your-own-policy.md")
            tree = _merge(
                tree, {"hooks": own[1], "available": "patch", "apply": f"needs a kernel that does as {own[1]}"}
            )
            rest = rest[own.end() :]
            continue
        stem, values, taken = _match(rest, files)
        if stem is None:
            word = re.match(r"[+-][^+]*", rest)
            diffs = [d for d in files if d.startswith(("+", "-")) and files[d].get("extends", base) == base]
            raise _unknown(name, word[0] if word else rest, diffs)
        diff = files[stem]
        if diff.get("extends", base) != base:
            raise FirsttouchError(
                f"policy {name}: {stem} is a diff against {diff['extends']}, not {base}", f"try {diff['extends']}{stem}"
            )
        tree = _merge(tree, values, diff)
        rest = rest[taken:]
    return {**tree, "name": name}


def _match(rest: str, files: dict[str, dict[str, Any]]) -> tuple[str | None, dict[str, Any], int]:
    """The diff that `rest` begins with: its stem, its tables with any number put in, and how many letters it took."""
    best: tuple[str | None, dict[str, Any], int] = (None, {}, 0)
    for stem, tree in files.items():
        if not stem.startswith(("+", "-")):
            continue
        match = re.match(re.escape(stem).replace("N", r"(\d+)") + r"(?=[+-]|$)", rest)
        if match and match.end() > best[2]:
            number = int(match[1]) if match.groups() else 0
            best = (stem, _put_number(tree, number), match.end())
    return best


def _put_number(tree: Any, number: int) -> Any:
    """Put the number in: `"N * 1024"`, `"N / 100"`, `"log2(N / 4)"` become numbers; an `N` in other text its digits."""
    if isinstance(tree, dict):
        return {key: _put_number(value, number) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_number(value, number) for value in tree]
    if tree == "N":
        return number
    if tree == "N * 1024":
        return number * 1024
    if tree == "N / 100":
        return number / 100
    if tree == "log2(N / 4)":
        order = (number // 4).bit_length() - 1
        if number != 4 << order or not 2 <= order < PMD_ORDER:
            raise FirsttouchError(
                f"there is no mTHP size of {number} KiB", "the sizes are 16, 32, 64, 128, 256, 512 and 1024"
            )
        return order
    return re.sub(r"\bN(?=k\b|kB\b|\b)", str(number), tree) if isinstance(tree, str) else tree


def _merge(base: dict[str, Any], diff: dict[str, Any], about: dict[str, Any] | None = None) -> dict[str, Any]:
    """`base` with `diff` laid over it, section by section; what is hardest to get decides `available`."""
    out = dict(base)
    for key, value in diff.items():
        if key == "extends":
            continue
        if key == "available":
            out[key] = max(base.get(key, "now"), value, key=lambda a: _RANK.get(a, 0))
        elif key == "apply":
            out[key] = _join_commands(base.get(key, ""), value)
        elif isinstance(value, dict):
            out[key] = {**base.get(key, {}), **value}
            for field, item in value.items():
                if field.startswith("mthp_") and field in base.get(key, {}):
                    out[key][field] = sorted({*base[key][field], *item})
        else:
            out[key] = value
    return out


def _join_commands(first: str, then: str) -> str:
    """Both commands in order; of two that write to one file only the last. What is not a setting stands by itself."""
    if "> " not in then:
        first = "; ".join(command for command in first.split("; ") if "> " not in command)
    commands: dict[str, str] = {}
    for command in [*first.split("; "), *then.split("; ")]:
        target = command.rpartition("> ")[2] if "> " in command else command
        commands.pop(target, None)
        commands[target] = command
    return "; ".join(command for command in commands.values() if command)


def _unknown(name: str, word: str, known: list[str]) -> FirsttouchError:
    near = difflib.get_close_matches(word, known, 3, 0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "see: firsttouch policies"
    return FirsttouchError(f"there is no policy {name!r}: {word!r} is unknown", hint)


def _finish(tree: dict[str, Any], where: str) -> Policy:
    try:
        policy = msgspec.convert(tree, Policy)
    except msgspec.ValidationError as error:
        raise FirsttouchError(
            f"policy {where}: {error}", "see docs/reference/policy.md, or a preset: firsttouch policies --show NAME"
        ) from None

    def bad(field: str, value: object, why: str) -> FirsttouchError:
        return FirsttouchError(f"policy {where}: {field} is {value}: {why}", "see docs/reference/policy.md")

    zero = policy.zero
    old_lists = policy.percpu.rules == "linux-2.6.10"
    if zero.zero_hot_pages and not old_lists:
        raise bad("zero.zero_hot_pages", True, "it needs percpu.rules = linux-2.6.10, whose lists know hot pages")
    if zero.init_on_free and old_lists:
        raise bad("zero.init_on_free", True, "the lists of linux-2.6.10 lose the zero state of what is freed")
    if zero.table_cache_pages < 0:
        raise bad("zero.table_cache_pages", zero.table_cache_pages, "it is 0 or more")
    queues = policy.percpu.rules == "page-queues"
    if queues != (zero.scrub == "pagezero") and zero.scrub != "none":
        raise bad("zero.scrub", zero.scrub, "pagezero, and no other, goes with percpu.rules = page-queues")
    if queues and zero.init_on_free:
        raise bad("zero.init_on_free", True, "page queues (percpu.rules) take freed pages as they are")
    if queues and (policy.superpage.thp != "never" or policy.superpage.mthp_always or policy.superpage.mthp_madvise):
        raise bad("superpage", policy.superpage, "page queues (percpu.rules) have single pages only")
    if zero.scrub == "pagezero" and (zero.scrub_driver, zero.scrub_start, zero.scrub_stop, zero.scrub_load) != (
        "cpu",
        None,
        None,
        None,
    ):
        raise bad("zero.scrub", "pagezero", "it has its marks, and none of the fields of scrubd")
    if zero.extent_bytes < 0 or zero.extent_bytes & (zero.extent_bytes - 1):
        raise bad("zero.extent_bytes", zero.extent_bytes, "it is 0 (page by page) or a power of two")
    if zero.scrub_pages_per_s < 0:
        raise bad("zero.scrub_pages_per_s", zero.scrub_pages_per_s, "it is 0 (no limit) or more")
    if zero.scrub_pages_per_s and zero.scrub in ("none", "pagezero"):
        raise bad("zero.scrub_pages_per_s", zero.scrub_pages_per_s, f"there is no scrubd to slow down ({zero.scrub})")
    if zero.scrub == "none" and (zero.scrub_driver, zero.scrub_start, zero.scrub_stop) != ("cpu", None, None):
        raise bad("zero.scrub", "none", "there is no scrubber to steer with the other scrub_* fields")
    if zero.init_on_free and zero.scrub != "none":
        raise bad("zero.scrub", zero.scrub, "with init_on_free every free page is zero already")
    if zero.zero_hot_pages and policy.sched.idle_yield == "at-once":
        raise bad("sched.idle_yield", "at-once", "zeroing just-freed pages ends with the page that is under way")
    locks = policy.locks
    if locks.pv_hash_locks < 1:
        raise bad("locks.pv_hash_locks", locks.pv_hash_locks, "it must be at least 1")
    if policy.kernel == "linux" and (locks.pv_lists, locks.pv_hash_locks, locks.pv_batch) != ("hashed", 256, False):
        raise bad("locks.pv_*", (locks.pv_lists, locks.pv_hash_locks, locks.pv_batch), "Linux has no pv lists")
    if policy.kernel == "linux" and policy.superpage.reservations:
        raise bad("superpage.reservations", True, "Linux has none; it goes with kernel = freebsd-13")
    if policy.kernel != "linux":
        for field, value, wanted in (
            ("superpage.thp", policy.superpage.thp, "never"),
            ("superpage.mthp_always", policy.superpage.mthp_always, []),
            ("superpage.mthp_madvise", policy.superpage.mthp_madvise, []),
            ("fault_ahead.prefault", policy.fault_ahead.prefault, "none"),
            ("fault_ahead.populate", policy.fault_ahead.populate, False),
            ("fault_ahead.neighbours", policy.fault_ahead.neighbours, "freebsd"),
            ("superpage.promote", policy.superpage.promote, "never"),
            ("hooks", policy.hooks, ""),
        ):
            if value != wanted:
                raise bad(field, value, f"{policy.kernel} has no such mechanism; it must be {wanted!r}")
    ahead = policy.fault_ahead
    if not 0 <= ahead.prefault_max_order <= PMD_ORDER or ahead.prefault_max_pages < 1 or ahead.prefault_min_run < 0:
        raise bad("fault_ahead.prefault_*", ahead, "orders are 0 to 9, pages at least 1, a run at least 0")
    for field in ("behind_pages", "ahead_pages", "sequential_ahead_pages"):
        if not 0 <= getattr(ahead, field) < PMD_PAGES:
            raise bad(
                f"fault_ahead.{field}", getattr(ahead, field), f"a window has 0 to {PMD_PAGES - 1} pages each way"
            )
    if ahead.neighbours == "linux" and (ahead.scaling, ahead.fills_shared, ahead.after_copies) != (
        "none",
        False,
        False,
    ):
        raise bad("fault_ahead.neighbours", "linux", "scaling, fills_shared and after_copies are of a BSD's window")
    around = policy.fault_ahead.fault_around_bytes
    if around < 1 or around & (around - 1):
        raise bad("fault_ahead.fault_around_bytes", around, "it must be a power of two")
    for field, orders in (
        ("mthp_always", policy.superpage.mthp_always),
        ("mthp_madvise", policy.superpage.mthp_madvise),
    ):
        for order in orders:
            if not 2 <= order < PMD_ORDER:
                raise bad(f"superpage.{field}", order, "mTHP orders are 2 to 8; order 9 is `thp`")
    pages = policy.superpage
    promotes = pages.promote != "never" or pages.promote_in_fault_ratio > 0
    if promotes and pages.thp == "never":
        raise bad("superpage.thp", "never", "promotion needs mappings that may have superpages: madvise or always")
    if pages.thp != "never" and not pages.at_first_touch and not promotes:
        raise bad("superpage.at_first_touch", False, "nothing promotes, so superpages would never come")
    if pages.recover_above_ratio and (pages.promote == "never" or pages.recover_to_ratio >= pages.recover_above_ratio):
        raise bad(
            "superpage.recover_above_ratio",
            pages.recover_above_ratio,
            f"it needs the daemon (promote) and must be above recover_to_ratio, which is {pages.recover_to_ratio}",
        )
    for field in ("promote_min_ratio", "promote_in_fault_ratio", "recover_above_ratio", "recover_to_ratio"):
        if not 0 <= getattr(pages, field) <= 1:
            raise bad(f"superpage.{field}", getattr(pages, field), "a ratio is 0 to 1")
    for field, least, most in (
        ("promote_max_none", 0, 511),
        ("promote_max_shared", 0, 512),
        ("promote_scan_pages", 1, 1 << 40),
        ("promote_sleep_ms", 1, 10**12),
        ("promote_alloc_sleep_ms", 0, 10**12),
    ):
        if not least <= getattr(pages, field) <= most:
            raise bad(f"superpage.{field}", getattr(pages, field), f"it is {least} to {most}")
    if policy.percpu.batch_pages < 0 or policy.sched.quantum_ns < 1:
        raise bad(
            "percpu.batch_pages or sched.quantum_ns",
            (policy.percpu.batch_pages, policy.sched.quantum_ns),
            "out of range",
        )
    return policy
