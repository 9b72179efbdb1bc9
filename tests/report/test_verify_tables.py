"""What a verification looks like, and the page that is made of it."""

import msgspec
import pytest

from firsttouch.errors import FirsttouchError
from firsttouch.host import probe
from firsttouch.report import accuracy
from firsttouch.report.verify_tables import value, verify_plain
from firsttouch.verify import claims
from firsttouch.verify.check import SCHEMA, ProgramResult, Verification
from firsttouch.verify.claims import Predicted, judge, not_measurable
from firsttouch.verify.statistics import Interval


def exact(amount: float) -> Predicted:
    return Predicted(amount, amount, amount)


@pytest.fixture
def result() -> Verification:
    rows = [
        judge("sort", "never", "faults", exact(24_327), Interval(24_327, 24_327, 24_327, 3)),
        judge("sort", "never", "system_ns", exact(50e6), Interval(40e6, 39e6, 41e6, 3)),
        judge("sort", "never", "wall_ns", exact(500e6), Interval(700e6, 500e6, 900e6, 3)),
        not_measurable("sort", "never", "peak_rss_bytes", "the kernel keeps | the largest", exact(3 << 20)),
        *[not_measurable("sort", "thp", name, "it needs root") for name in claims.TOLERANCE_RATIO],
    ]
    recording = {"touches": 24_326, "level": "full"}
    return Verification(
        schema=SCHEMA,
        claims=rows,
        summary=claims.summary(rows),
        programs=[
            ProgramResult("sort", ["sort", "li\x1bnes"], "", ["never: differs"], [recording], []),
            ProgramResult("redis", ["redis-server"], "there is no redis-server: apt-get install it", [], [], []),
        ],
        knobs=[],
        host=msgspec.structs.replace(probe.facts(), kernel="6.18.0", cpu="CPU", nr_cpus=2, virtual="none"),
        machine="made-up",
        nr_runs=3,
        nr_recordings=1,
        warnings=["costs are those of another machine"],
    )


def test_the_plain_text_has_each_claim_its_verdict_and_reasons(result: Verification) -> None:
    text = verify_plain(result)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "never faults 24,327 24,327 [24,327, 24,327] +0.0% pass" in lines
    assert "system 50.0ms 40.0ms [39.0ms, 41.0ms] +25.0% FAIL" in lines
    assert "wall 500ms 700ms [500ms, 900ms] -28.6% -" in lines
    assert "the runs differ too much: the interval is +-28.6%" in lines
    assert "peak 3MiB not measurable: the kernel keeps | the largest" in lines
    assert "thp not measurable: it needs root" in lines  # once for all observables
    assert "skipped there is no redis-server: apt-get install it" in lines
    assert "10 claims: 1 passed, 1 failed, 8 not measurable." in lines
    assert "note: costs are those of another machine" in lines
    assert text.isascii() and "\x1b" not in text


def test_values_have_their_units() -> None:
    assert [value("faults", 1234.0), value("wall_ns", 1.5e9), value("peak_rss_bytes", 2.5 * 2**20)] == [
        "1,234", "1.50s", "2.5MiB",
    ]  # fmt: skip


def test_the_page_is_made_replaced_and_otherwise_left_alone(result: Verification) -> None:
    made = accuracy.page("", result)
    assert made.startswith("# Accuracy\n") and accuracy.page(made, result) == made
    around = f"# Mine\n\nbefore\n\n{accuracy.BEGIN}\nold\n{accuracy.END}\n\nafter\n"
    page = accuracy.page(around, result)
    assert page.startswith("# Mine\n\nbefore\n") and page.endswith("\nafter\n") and "\nold\n" not in page
    assert "| `never` | 24,327 : 24,327, +0.0% | 50.0ms : 40.0ms, +25.0% \\* |" in page
    assert "- sort, never, system: off by +25.0%, tolerance 15%" in page
    assert "Linux 6.18.0 on CPU, 2 CPUs" in page and "Skipped: there is no redis-server" in page


def test_a_page_that_lost_its_second_mark_is_not_touched(result: Verification) -> None:
    with pytest.raises(FirsttouchError):
        accuracy.page(f"# Mine\n{accuracy.BEGIN}\nold\n", result)
