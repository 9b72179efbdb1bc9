"""User call chains: each different one stored once, and names for their addresses when the recording ends.

A chain is known by a 64-bit hash that the decoding kernel computes. Names come from the ELF symbol tables of the
files that were mapped where the address lies: best effort, in bounded time.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsttouch.trace.decode import TOUCH, Chunk
from firsttouch.trace.schema import NO_ID

MAX_ADDRESSES = 200_000
SYMBOL_BUDGET_S = 10.0
_CONTEXT_MAX = 2**64 - 4095

Place = tuple[str, int]  # file, offset in it


class StackTable:
    """Chains seen so far, and where in which file their addresses lie."""

    def __init__(self) -> None:
        self._id: dict[int, int] = {}
        self._ips: list[list[int]] = []
        self._paired: set[tuple[int, int]] = set()
        self._places: dict[tuple[int, int], Place] = {}
        self._new: list[tuple[int, int, int]] = []

    def number(self, chunk: Chunk) -> None:
        """Replace the chain hash of each touch (args 2) by a stack number + 1; 0 stays "none"."""
        rows = np.flatnonzero(chunk.rows.what == TOUCH)
        args = chunk.rows.args
        hashes, first, inverse = np.unique(args[rows, 2], return_index=True, return_inverse=True)
        numbers = np.zeros(len(hashes), np.uint64)
        for k, (digest, at) in enumerate(zip(hashes.tolist(), first.tolist(), strict=True)):
            if digest == 0:
                continue
            if digest not in self._id:
                self._id[digest] = self._add(chunk.words, args[rows[at]])
            numbers[k] = self._id[digest] + 1
        args[rows, 2] = numbers[inverse]

    def _add(self, words: NDArray[np.uint32], args: NDArray[np.uint64]) -> int:
        at, nr = int(args[3]), int(args[4])
        ips = [ip for ip in words[at : at + 2 * nr].view(np.uint64).tolist() if ip < _CONTEXT_MAX]
        stack_id = len(self._ips)
        self._ips.append(ips)
        self._new.extend([(stack_id, depth, ip) for depth, ip in enumerate(ips)])
        return stack_id

    def take_new(self) -> list[tuple[int, int, int]]:
        """Rows of table `stack` since the last call."""
        rows, self._new = self._new, []
        return rows

    def locate(self, pid: int, ids: NDArray[np.int32], place: Callable[[int, int], Place | None]) -> None:
        """Note where the addresses of each chain that is new for a process lie, while its mappings are known."""
        for stack_id in np.unique(ids).tolist():
            if (pid, stack_id) in self._paired or len(self._places) > MAX_ADDRESSES:
                continue
            self._paired.add((pid, stack_id))
            for depth, ip in enumerate(self._ips[stack_id]):
                if (pid, ip) not in self._places:
                    found = place(pid, ip - (depth > 0))  # a return address may be past the end of its function
                    if found:
                        self._places[pid, ip] = found

    def symbols(self, budget_s: float = SYMBOL_BUDGET_S) -> list[tuple[int, int, str, str, int]]:
        """Rows of table `symbol`; line 0 means not known. Files that the time does not allow are left out."""
        by_file: dict[str, list[tuple[int, int, int]]] = {}
        for (pid, ip), (name, offset) in self._places.items():
            by_file.setdefault(name, []).append((pid, ip, offset))
        deadline = time.monotonic() + budget_s
        rows = []
        for name, places in sorted(by_file.items(), key=lambda item: -len(item[1])):
            if time.monotonic() > deadline:
                break
            table = read_symbols(name)
            for pid, ip, offset in places:
                rows.append((pid, ip, table.find(offset) if table else "", name, 0))
        return rows


class SymbolTable:
    """Functions of one ELF file by file offset."""

    def __init__(self, functions: list[tuple[int, int, str]], segments: list[tuple[int, int, int]]) -> None:
        self._segments = segments  # file offset, size, virtual address
        self._functions = sorted(functions)
        self._starts = [start for start, _, _ in self._functions]

    def find(self, offset: int) -> str:
        """Name of the function at a file offset, or ""."""
        for begin, size, address in self._segments:
            if begin <= offset < begin + size:
                at = offset - begin + address
                k = bisect_right(self._starts, at) - 1
                if k >= 0 and at < self._starts[k] + max(1, self._functions[k][1]):
                    return self._functions[k][2]
        return ""


def read_symbols(path: str) -> SymbolTable | None:
    """The symbol table of an ELF file, or None if it is none, is gone, or is damaged."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open(path, "rb") as file:
            elf: Any = ELFFile(file)
            segments = [
                (s["p_offset"], s["p_filesz"], s["p_vaddr"]) for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"
            ]
            functions = []
            for name in (".symtab", ".dynsym"):
                section = elf.get_section_by_name(name)
                if section is None:
                    continue
                functions = _functions(elf, section)
                break
            return SymbolTable(functions, segments)
    except (OSError, ELFError, ValueError, KeyError, UnicodeDecodeError):
        return None


def _functions(elf: Any, section: Any) -> list[tuple[int, int, str]]:
    """(address, size, name) of each function of a symbol section, read in one go: pyelftools is slow per symbol."""
    if elf.elfclass != 64 or not elf.little_endian:
        return [
            (s["st_value"], s["st_size"], s.name)
            for s in section.iter_symbols()
            if s["st_info"]["type"] in ("STT_FUNC", "STT_LOOS")
        ]
    kind = np.dtype(
        [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
    )
    data = section.data()
    table = np.frombuffer(data, kind, len(data) // kind.itemsize)
    names = elf.get_section(section["sh_link"]).data()
    table = table[np.isin(table["info"] & 15, (2, 10)) & (table["value"] != 0)]
    functions = []
    for at, value, size in zip(table["name"].tolist(), table["value"].tolist(), table["size"].tolist(), strict=True):
        functions.append((value, size, names[at : names.index(b"\0", at)].decode("utf-8", "replace")))
    return functions


def stack_ids(numbers: NDArray[np.uint64]) -> NDArray[np.int32]:
    """touch.stack_id from what `StackTable.number` left in args 2."""
    ids: NDArray[np.int32] = numbers.astype(np.int64).astype(np.int32) - 1
    assert NO_ID == -1
    return ids
