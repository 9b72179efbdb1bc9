"""Sizes and times, between numbers and what people type and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch.errors import FirsttouchError
from firsttouch.units import format_bytes, format_ns, order_of, pages, parse_bytes, parse_ns


@pytest.mark.parametrize(
    ("text", "nr_bytes"),
    [
        ("4096", 4096),
        ("0", 0),
        ("64KiB", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64kb", 65536),
        ("2 MiB", 2 << 20),
        ("1.5G", 3 << 29),
        ("1T", 1 << 40),
        ("12 B", 12),
        ("  8k ", 8192),
        ("1.0001k", 1024),  # 1024.1, rounded
    ],
)
def test_parse_bytes(text: str, nr_bytes: int) -> None:
    assert parse_bytes(text) == nr_bytes


@pytest.mark.parametrize("text", ["", "k", "-1", "4 096", "1e3", "64 KiBs", "0x1000", "1.2.3", "1.", "many", "4P"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(FirsttouchError, match="is not a size") as error:
        parse_bytes(text)
    assert "64KiB" in error.value.hint


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1.5ms", 1_500_000),
        ("20us", 20_000),
        ("7ns", 7),
        ("3s", 3_000_000_000),
        ("3", 3_000_000_000),
        ("2 min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("0", 0),
    ],
)
def test_parse_ns(text: str, ns: int) -> None:
    assert parse_ns(text) == ns


@pytest.mark.parametrize("text", ["", "ms", "-1s", "1d", "1 s s", "1e3", "inf"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(FirsttouchError, match="is not a time"):
        parse_ns(text)


@pytest.mark.parametrize(
    ("nr_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (65536, "64 KiB"),
        (3 << 19, "1.5 MiB"),
        (1000 << 10, "1000 KiB"),
        (1 << 30, "1 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_format_bytes(nr_bytes: int, text: str) -> None:
    assert format_bytes(nr_bytes) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (1210, "1.21 us"),
        (9999, "10.0 us"),
        (999_949, "1.00 ms"),
        (1_000_000, "1.00 ms"),
        (35_000_000, "35.0 ms"),
        (2_500_000_000, "2.50 s"),
        (7_200_000_000_000, "7200 s"),
    ],
)
def test_format_ns(ns: int, text: str) -> None:
    assert format_ns(ns) == text


@given(st.integers(0, 1 << 50))
def test_a_formatted_size_reads_back_within_its_digits(nr_bytes: int) -> None:
    assert parse_bytes(format_bytes(nr_bytes)) == pytest.approx(nr_bytes, rel=0.006)


@given(st.integers(0, 10**15))
def test_a_formatted_time_reads_back_within_its_digits(ns: int) -> None:
    assert parse_ns(format_ns(ns)) == pytest.approx(ns, rel=0.006)


@given(st.integers(0, 1 << 40), st.sampled_from([4096, 8192, 65536]))
def test_pages_hold_the_bytes_and_no_page_is_spare(nr_bytes: int, page_bytes: int) -> None:
    nr_pages = pages(nr_bytes, page_bytes)
    assert (nr_pages - 1) * page_bytes < nr_bytes <= nr_pages * page_bytes


@pytest.mark.parametrize("order", range(11))
def test_order_of_a_block(order: int) -> None:
    assert order_of(4096 << order, 4096) == order
    assert order_of(65536 << order, 65536) == order


@pytest.mark.parametrize(("nr_bytes", "instead"), [(12288, "16 KiB"), (5000, "8 KiB"), (0, "4 KiB"), (1, "4 KiB")])
def test_what_is_not_a_block(nr_bytes: int, instead: str) -> None:
    with pytest.raises(FirsttouchError, match="is not a power of two of 4 KiB pages") as error:
        order_of(nr_bytes, 4096)
    assert error.value.hint == f"try {instead}"
