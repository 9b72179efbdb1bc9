"""Every knob that the model has a word on: what it sets, what it needs, and which policy the kernel then follows.

A knob is named as the policies are: `never`, `thp`, `mthp-64k`, `thp+mthp-64k`. There are four scopes:

| scope | is set | needs |
|---|---|---|
| system | files under /sys, for every program | root |
| process | a flag of the process before exec (prctl) | a kernel that has it |
| program | a variable in the program's environment, which it must honour | such a program |
| boot | nothing: only read | a reboot |

System knobs describe the whole state: what a name does not mention is off. So `mthp-64k` is 64 KiB and nothing else,
whatever this machine is set to. Process and program knobs come on top of what the machine is set to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.host import knobs
from firsttouch.host.present import BASE, present_policy
from firsttouch.host.probe import HostFacts
from firsttouch.policy import Policy, Superpage
from firsttouch.units import BASE_PAGE_BYTES, PMD_ORDER

Scope = Literal["system", "process", "program", "boot"]
Build = Callable[[HostFacts, Path], "Setting"]

_ROOT = Path("/")
_POOL_SITE = Path(__file__).parents[1] / "pool" / "site"  # pool.launch.SITE, in a room beside this one
_THP = "sys/kernel/mm/transparent_hugepage"
_AROUND = "sys/kernel/debug/fault_around_bytes"

# arguments 2 and 3 of prctl(PR_SET_THP_DISABLE, ...)
THP_AS_IS = (0, 0)
THP_OFF = (1, 0)
THP_ADVISED_ONLY = (1, 2)  # Linux 6.18

# What programs that opt in look at; "0" and "1" are equally long, so that the stack does not move.
POPULATE_ENV = "FIRSTTOUCH_POPULATE"
RANDOM_ENV = "FIRSTTOUCH_MADV_RANDOM"


class Setting(msgspec.Struct, frozen=True):
    """One state of the kernel that a program can be run under."""

    name: str  # as it was asked for
    policy: Policy  # that the kernel then follows
    files: dict[str, str] = {}  # path -> value, to be written first
    thp_disable: tuple[int, int] = THP_AS_IS
    env: dict[str, str] = {}  # added to the program's
    own_recording: bool = False  # the program makes other calls under it: what it does must be recorded anew
    opt_in: str = ""  # the variable that a program must honour, or ""
    refused: str = ""  # why this machine cannot do it, or ""


class Knob(msgspec.Struct, frozen=True):
    """A row of `KNOBS`."""

    name: str  # N stands for a number, WORD for a word
    summary: str
    scope: Scope
    needs: str


KNOBS = (
    Knob("never", "no huge pages of any size; without root for the program alone, by prctl", "system", "root"),
    Knob("thp", "2 MiB pages wherever they fit", "system", "root"),
    Knob("thp-madvise", "2 MiB pages where the program asks for them", "system", "root"),
    Knob("mthp-Nk", "blocks of N KiB wherever they fit", "system", "root, Linux 6.8"),
    Knob("defrag-WORD", "how hard a fault tries: always, defer, defer+madvise (write defer-madvise), madvise, never",
         "system", "root"),
    Knob("khugepaged-off", "no joining of pages in the background (it looks once an hour)", "system", "root"),
    Knob("fault-around-Nk", "pages of a file mapped around a read fault", "system", "root, debugfs"),
    Knob("no-thp", "PR_SET_THP_DISABLE: no huge pages for this program", "process", "Linux 3.15"),
    Knob("thp-advised-only", "the same, except where the program asks", "process", "Linux 6.18"),
    Knob("numpy-no-advice", "NUMPY_MADVISE_HUGEPAGE=0: NumPy does not ask for huge pages", "program", "NumPy"),
    Knob("malloc-thp", "glibc.malloc.hugetlb=1: malloc asks for huge pages", "program", "glibc 2.35"),
    Knob("populate", f"{POPULATE_ENV}=1: MADV_POPULATE_WRITE as memory is mapped", "program", "a program that opts in"),
    Knob("pool", "FIRSTTOUCH_POOL=1: the pool beneath NumPy, as firsttouch run has it", "program", "NumPy 2"),
    Knob("madv-random", f"{RANDOM_ENV}=1: MADV_RANDOM on mapped files", "program", "a program that opts in"),
    Knob("init-on-alloc", "the allocator zeroes: what init_on_alloc=1 sets", "boot", "that this kernel booted so"),
    Knob("init-on-free", "pages are zeroed as they are freed: init_on_free=1", "boot", "that this kernel booted so"),
)  # fmt: skip

DEFAULT = ("never", "thp", "mthp-16k", "mthp-64k", "mthp-512k")


def resolve(name: str, facts: HostFacts, root: Path = _ROOT) -> Setting:
    """What a knob means on this machine; `refused` says so if it cannot be had. Raises FirsttouchError if unknown."""
    plain = name.strip().removeprefix(BASE).lstrip("+") or "never"
    alone: Mapping[str, Build] = {
        "no-thp": _no_thp,
        "thp-advised-only": _advised_only,
        "numpy-no-advice": lambda facts, root: _program(facts, root, {"NUMPY_MADVISE_HUGEPAGE": "0"}, True),
        "malloc-thp": lambda facts, root: _program(facts, root, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, True),
        "populate": lambda facts, root: _opt_in(facts, root, POPULATE_ENV),
        "pool": _pool,
        "madv-random": lambda facts, root: _opt_in(facts, root, RANDOM_ENV),
        "init-on-alloc": lambda facts, root: _boot(facts, root, "init_on_alloc", ""),
        "init-on-free": lambda facts, root: _boot(facts, root, "init_on_free", "+init-on-free"),
    }
    if plain in alone:
        setting = alone[plain](facts, root)
    else:
        setting = _system(plain, facts, root)
    return msgspec.structs.replace(setting, name=plain)


def boot_switch(name: str, root: Path = _ROOT) -> bool | None:
    """Whether this kernel booted with `name=1` (or on, y); None where the command line cannot be read."""
    try:
        words = (root / "proc/cmdline").read_text().split()
    except OSError:
        return None
    values = [word.partition("=")[2] for word in words if word.partition("=")[0] == name]
    return bool(values) and values[-1].lower() in ("1", "on", "y", "yes")


def _unknown(part: str) -> FirsttouchError:
    known = ", ".join(knob.name for knob in KNOBS)
    return FirsttouchError(f"there is no knob {part!r}", f"see the knobs: {known}")


def _system(plain: str, facts: HostFacts, root: Path) -> Setting:
    """A state of the system's files: all of them off but for what is named."""
    thp = root / _THP
    files = {str(thp / "enabled"): "never"} if facts.thp else {}
    for size in facts.mthp:
        kib = int(size.removesuffix("kB"))
        value = "inherit" if kib * 1024 == BASE_PAGE_BYTES << PMD_ORDER else "never"
        files[str(knobs.mthp_knob(kib * 1024, root))] = value
    diffs, refused = "", ""
    for part in plain.split("+"):
        word = part.rpartition("-")[2]
        if part == "never":
            continue
        if part in ("thp", "thp-madvise"):
            files[str(thp / "enabled")] = "always" if part == "thp" else "madvise"
            diffs += f"+{part}"
            refused = refused or ("" if facts.thp else "this kernel has no transparent huge pages")
        elif match := re.fullmatch(r"mthp-(\d+)k", part):
            policies.load(f"{BASE}+{part}")  # says which sizes there are
            files[str(knobs.mthp_knob(int(match[1]) * 1024, root))] = "always"
            diffs += f"+{part}"
            has = f"{match[1]}kB" in facts.mthp
            refused = refused or ("" if has else f"this kernel has no huge pages of {match[1]} KiB")
        elif part.startswith("defrag-") and word in ("always", "defer", "madvise", "never"):
            files[str(thp / "defrag")] = "defer+madvise" if part == "defrag-defer-madvise" else word
        elif part == "khugepaged-off":
            files[str(thp / "khugepaged/scan_sleep_millisecs")] = "3600000"
        elif match := re.fullmatch(r"fault-around-(\d+)k?", part):
            files[str(root / _AROUND)] = str(int(match[1]) * 1024)
            diffs += f"+fault-around-{match[1]}"
            if facts.fault_around_bytes is None:
                refused = refused or "debugfs is not mounted: mount -t debugfs none /sys/kernel/debug"
        else:
            raise _unknown(part)
    policy = _as_set_here(policies.load(BASE + diffs), facts, root)
    files = {path: value for path, value in files.items() if Path(path).exists()}
    changed = [path for path, value in files.items() if knobs.read_knob(path) != value]
    shut = next((path for path in changed if not os.access(path, os.W_OK)), "")
    if shut and not diffs and plain == "never":
        return Setting(name=plain, policy=policy, thp_disable=THP_OFF)
    if shut:
        why = "needs root" if os.geteuid() else "is read-only here"
        refused = refused or f"{shut} {why}"
    return Setting(name=plain, policy=policy, files=files, refused=refused)


def _as_set_here(policy: Policy, facts: HostFacts, root: Path) -> Policy:
    """What no knob of ours touches: fault-around and the huge zero page, as this machine has them."""
    if facts.fault_around_bytes and "fault-around" not in policy.name:
        ahead = msgspec.structs.replace(policy.fault_ahead, fault_around_bytes=facts.fault_around_bytes)
        policy = msgspec.structs.replace(policy, fault_ahead=ahead)
    if knobs.read_or_empty(root / _THP / "use_zero_page") == "0":
        pages = msgspec.structs.replace(policy.superpage, use_zero_page=False)
        policy = msgspec.structs.replace(policy, superpage=pages)
    return policy


def _here(facts: HostFacts, root: Path) -> Policy:
    return _as_set_here(present_policy(facts), facts, root)


def _no_thp(facts: HostFacts, root: Path) -> Setting:
    return Setting(name="", policy=_as_set_here(policies.load(BASE), facts, root), thp_disable=THP_OFF)


def _advised_only(facts: HostFacts, root: Path) -> Setting:
    """What is `always` becomes `madvise`, for every size."""
    now = _here(facts, root)
    pages = now.superpage
    advised = Superpage(
        thp="never" if pages.thp == "never" else "madvise",
        mthp_madvise=sorted({*pages.mthp_always, *pages.mthp_madvise}),
        use_zero_page=pages.use_zero_page,
    )
    version = tuple(int(number) for number in re.findall(r"\d+", facts.kernel)[:2])
    refused = "" if version >= (6, 18) else f"Linux {facts.kernel} has no PR_THP_DISABLE_EXCEPT_ADVISED"
    policy = msgspec.structs.replace(now, name=f"{now.name} (advised only)", superpage=advised)
    return Setting(name="", policy=policy, thp_disable=THP_ADVISED_ONLY, refused=refused)


def _program(facts: HostFacts, root: Path, env: dict[str, str], own_recording: bool) -> Setting:
    return Setting(name="", policy=_here(facts, root), env=env, own_recording=own_recording)


def _pool(facts: HostFacts, root: Path) -> Setting:
    """What `firsttouch run` puts into a program's environment; the model makes the pool of the plain recording."""
    now, diff = _here(facts, root), policies.load(f"{BASE}+pool")
    policy = msgspec.structs.replace(now, name=f"{now.name}+pool", userspace=diff.userspace)
    paths = [str(_POOL_SITE), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return Setting(name="", policy=policy, env={"FIRSTTOUCH_POOL": "1", "PYTHONPATH": os.pathsep.join(paths)})


def _opt_in(facts: HostFacts, root: Path, variable: str) -> Setting:
    """The program makes other calls then, so the policy is the machine's and the recording is another."""
    return Setting(name="", policy=_here(facts, root), env={variable: "1"}, own_recording=True, opt_in=variable)


def _boot(facts: HostFacts, root: Path, switch: str, diff: str) -> Setting:
    on = boot_switch(switch, root)
    refused = "" if on else f"it takes a reboot with {switch}=1" if on is not None else "/proc/cmdline cannot be read"
    now = _here(facts, root)
    if diff:
        zero = policies.load(BASE + diff).zero
        now = msgspec.structs.replace(now, name=now.name + diff, zero=zero)
    return Setting(name="", policy=now, refused=refused)
