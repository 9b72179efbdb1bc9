"""Conversions between bytes, pages, orders and times, and between them and what a person types or reads.

4096, 512 and 12 stand here and in machine files only. Functions that take a page size take it in bytes.
"""

import math
import re

from firsttouch.errors import FirsttouchError

BASE_PAGE_BYTES = 4096  # of x86-64 and of every trace recorded there
PMD_ORDER = 9  # pages of one page-table page, and of one x86-64 superpage: 2**9
PMD_PAGES = 1 << PMD_ORDER

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000, "h": 3_600_000_000_000}


def parse_bytes(text: str) -> int:
    """Bytes of `64KiB`, `64k`, `2 MiB`, `1.5G` or `4096`; all prefixes are powers of 1024. Raises FirsttouchError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise FirsttouchError(f"{text!r} is not a size", "write it as 4096, 64KiB, 2MiB or 1.5GiB")
    return round(float(match[1]) * _BYTES[match[2]])


def parse_ns(text: str) -> int:
    """Nanoseconds of `1.5ms`, `20us`, `3s` or `2min`; a bare number is seconds. Raises FirsttouchError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)?\s*", text.lower())
    if match is None:
        raise FirsttouchError(f"{text!r} is not a time", "write it as 500us, 1.5ms, 3s or 2min")
    return round(float(match[1]) * _SECONDS[match[2] or "s"])


def format_bytes(nr_bytes: float) -> str:
    """`64 KiB`, `1.5 MiB`, `0 B`: three significant digits, powers of 1024."""
    size = float(nr_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}" if abs(size) < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if abs(size) < 1000 else f"{size:.0f} TiB"


def format_ns(ns: float) -> str:
    """`850 ns`, `1.21 us`, `35.0 ms`, `2.50 s`: three significant digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= 0.9995 * size:
            value = ns / size
            exponent = int(f"{value:.2e}".partition("e")[2])  # of the value as rounded: 9.999 is 10.0
            digits = max(0, 2 - exponent)
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def pages(nr_bytes: int, page_bytes: int) -> int:
    """Pages that `nr_bytes` need, rounded up."""
    return -(-nr_bytes // page_bytes)


def order_of(nr_bytes: int, page_bytes: int) -> int:
    """The order of a block of exactly `nr_bytes`. Raises FirsttouchError if that is not a power of two of pages."""
    nr_pages, rest = divmod(nr_bytes, page_bytes)
    if rest or nr_pages < 1 or nr_pages & (nr_pages - 1):
        raise FirsttouchError(
            f"{format_bytes(nr_bytes)} is not a power of two of {format_bytes(page_bytes)} pages",
            f"try {format_bytes(page_bytes << max(0, math.ceil(math.log2(max(1, nr_bytes / page_bytes)))))}",
        )
    return nr_pages.bit_length() - 1
