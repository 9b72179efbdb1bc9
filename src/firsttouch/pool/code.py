"""The pool's machine code: compiled once by `build.py`, kept as an object file, and linked here without a compiler.

Loading Numba takes a fifth of a second and 100 MiB, LLVM alone a third of that; a program that only uses the pool needs
neither. The object file is an ordinary one of ELF whose references are absolute addresses, of its own sections and of
functions of the C library; putting them in is all that linking is. Where the file asks for more, and on machines other
than x86-64, Numba loads the code from its own cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from firsttouch._code_folder import BOUNDSCHECK, PACKAGE, code_folder
from firsttouch._mapping import Region

NAMES = (
    *("pool_malloc", "pool_calloc", "pool_realloc", "pool_free", "large_malloc", "large_calloc", "large_free"),
    *("scrub_main", "lock_all", "unlock_all", "after_fork_in_child", "open_arena", "start", "stop", "trim"),
)
_SOURCES = ("_code_folder", "_jit", "_layout", "_mapping", "_native", "_packed", "mm/buddy", "mm/freelists")

# ELF
_PROGBITS, _NOBITS, _SYMTAB, _RELA = 1, 8, 2, 4
_WRITE, _ALLOC = 1, 2
_UNDEFINED = 0
_ABS64, _REL64 = 1, 24  # relocations of x86-64

_kept: list[Any] = []


class Unlinkable(Exception):
    """The object file asks for what is not done here."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    nr_bytes: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


def load(say: Callable[[str], None]) -> dict[str, int]:
    """The address of each function of NAMES. Compiles where that was not done yet, and says so."""
    if BOUNDSCHECK or os.uname().machine != "x86_64":
        return _from_numba()
    path = object_file()
    try:
        made = path.read_bytes()
    except OSError:
        say("compiling for this machine, once")
        made = import_module("firsttouch.pool.build").object_code()
        scratch = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            scratch.write_bytes(made)
            scratch.replace(path)
    try:
        return link(made)
    except Unlinkable:
        return _from_numba()


def object_file() -> Path:
    """Where the machine code is kept: by its sources, and by what this CPU can do."""
    sources = [*(PACKAGE / f"{name}.py" for name in _SOURCES), *(PACKAGE / "pool").glob("*.py")]
    with open("/proc/cpuinfo") as file:
        first = file.read(8192).partition("\n\n")[0].splitlines()
    cpu = [line for line in first if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags"))]
    return code_folder("pool", sources) / f"{hashlib.sha256(''.join(cpu).encode()).hexdigest()[:16]}.o"


def _from_numba() -> dict[str, int]:
    compiled = import_module("firsttouch.pool.build").callbacks()
    _kept.extend(compiled.values())
    return {name: int(function.address) for name, function in compiled.items()}


def link(made: bytes) -> dict[str, int]:
    """Put an object file into memory, for ever; the address of each function of NAMES. Raises Unlinkable."""
    if made[:6] != b"\x7fELF\x02\x01":
        raise Unlinkable("not a 64-bit object file")
    sections = _sections(made)
    place: dict[int, int] = {}  # section -> offset in what is mapped
    end = 0
    for i, section in enumerate(sections):
        if section.kind in (_PROGBITS, _NOBITS) and section.flags & _ALLOC and section.nr_bytes:
            if section.flags & _WRITE:
                raise Unlinkable("it has data of its own")
            place[i] = -(-end // section.alignment) * section.alignment
            end = place[i] + section.nr_bytes
    page = os.sysconf("SC_PAGE_SIZE")
    region = Region(-(-end // page) * page)
    memory = bytearray(region.nr_bytes)
    for i, start in place.items():
        if sections[i].kind == _PROGBITS:
            memory[start : start + sections[i].nr_bytes] = _content(made, sections[i])
    found = dict(_symbols(made, sections, {i: region.address + start for i, start in place.items()}))
    _relocate(made, sections, place, memory, region.address, [address for _, address in found.values()])
    named = {name: address for name, address in found.values() if name in NAMES}
    if len(named) < len(NAMES):
        raise Unlinkable("it is not the pool's")
    ctypes.memmove(region.address, bytes(memory), len(memory))
    region.make_code()
    _kept.append(region)
    return named


def _sections(made: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", made, 0x28)
    size, number = struct.unpack_from("<HH", made, 0x3A)
    return [_Section(*struct.unpack_from("<IIQQQQIIQQ", made, table + i * size)) for i in range(number)]


def _content(made: bytes, section: _Section) -> bytes:
    return made[section.offset : section.offset + section.nr_bytes]


def _symbols(made: bytes, sections: list[_Section], bases: dict[int, int]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Number -> name and address of each symbol; address 0 for what is in no section that is mapped."""
    process = ctypes.CDLL(None)
    (table,) = (section for section in sections if section.kind == _SYMTAB)
    names = _content(made, sections[table.link])
    for i, (at, _info, _other, where, value, _) in enumerate(struct.iter_unpack("<IBBHQQ", _content(made, table))):
        name = names[at : names.index(b"\0", at)].decode()
        if where == _UNDEFINED and name:
            try:
                address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
            except AttributeError:
                raise Unlinkable(f"there is no {name}") from None
        else:
            address = bases[where] + value if where in bases else 0
        yield i, (name, address)


def _relocate(
    made: bytes, sections: list[_Section], place: dict[int, int], memory: bytearray, base: int, symbols: list[int]
) -> None:
    """Put addresses where the object file leaves room for them."""
    for section in sections:
        if section.kind != _RELA or section.info not in place:
            continue
        for offset, info, addend in struct.iter_unpack("<QQq", _content(made, section)):
            at, target, kind = place[section.info] + offset, symbols[info >> 32] + addend, info & 0xFFFFFFFF
            if symbols[info >> 32] == 0:
                raise Unlinkable("a reference to nothing")
            if kind == _ABS64:
                struct.pack_into("<Q", memory, at, target)
            elif kind == _REL64:
                struct.pack_into("<q", memory, at, target - base - at)
            else:
                raise Unlinkable(f"a relocation of type {kind}")
