"""A user's decisions: what the model asks, what it does with the answers, and what a mistake is told."""

import re
from pathlib import Path

import msgspec
import pytest
from hand_workload import Hand, linux, small_machine

from firsttouch._hook import NAMES
from firsttouch.errors import FirsttouchError
from firsttouch.mm.hooks import load_hooks
from firsttouch.mm.simulate import simulate

DOUBLING = """
from firsttouch import hook

@hook("window")
def window(run, last, page, start, end, free_pages):
    return min(8, 1 << min(run, 3))
"""

WILD = """
from firsttouch import hook

@hook("window")
def window(run, last, page, start, end, free_pages):
    return 1_000_000 if page % 2 == 0 else -5
"""

ORDER = """
from firsttouch import hook

@hook("order")
def order(allowed, room, page, start, end, free_pages):
    return 4 if page % 64 == 0 else 20 * (free_pages < 0)
"""


def pages_in_order(nr):
    hand = Hand(regions=[2])
    vma = hand.vma(0, 1024)
    thread = hand.thread()
    for page in range(nr):
        hand.write(thread, vma, page)
    return hand.workload()


def faults(tmp_path, text, nr):
    file = tmp_path / "mine.py"
    file.write_text(text)
    return simulate(pages_in_order(nr), small_machine(), linux(f"+{file}")).faults


def test_a_window_of_ones_own(tmp_path):
    # 1 + 2 + 4 + 8 = 15 pages in 4 faults; the other 49 by eights: 7 faults.
    assert faults(tmp_path, DOUBLING, 64) == 11


def test_answers_out_of_bounds_are_brought_inside(tmp_path):
    # Page 0 asks for a million: the rest of the page table. Page 512 the same. Nothing else faults.
    assert faults(tmp_path, WILD, 1024) == 2


def test_an_order_of_ones_own(tmp_path):
    # Pages 0, 64, 128, ... map 16 pages in one fault; of each 64 the other 48 fault by themselves.
    assert faults(tmp_path, ORDER, 256) == 4 * (1 + 48)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no hook"),
        ("from firsttouch import hook\n@hook('windows')\ndef f(a, b, c, d, e, f): return 1", "no hook 'windows'"),
        ("from firsttouch import hook\n@hook('window')\ndef f(a): return 1", "takes 6 numbers; f takes 1"),
        ("def f(:", "SyntaxError"),
        ("\n\n1 / 0", "line 3"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, message):
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(FirsttouchError) as error:
        load_hooks(str(file))
    assert message in error.value.message
    assert str(file) in error.value.message
    assert "\n" not in error.value.message


def test_what_numba_cannot_compile_is_one_line(tmp_path):
    pytest.importorskip("numba")
    from firsttouch._jit import JIT

    if not JIT:
        pytest.skip("with the JIT off nothing is compiled")
    file = tmp_path / "bad.py"
    file.write_text("from firsttouch import hook\n@hook('window')\ndef f(a, b, c, d, e, g):\n    return 'x' + a\n")
    with pytest.raises(FirsttouchError, match="cannot be compiled") as error:
        load_hooks(str(file))
    assert "\n" not in error.value.message


RAISES = """
from firsttouch import hook

@hook("window")
def window(run, last, page, start, end, free_pages):
    return 8 // (last - 4)
"""


def test_a_function_that_raises_in_the_run_is_told_with_what_it_was_asked(tmp_path):
    # 8 // -4 is out of bounds: one page. Then last is 1: 8 // -3, one page again. So only a window of four would raise.
    assert faults(tmp_path, RAISES, 8) == 8
    text = RAISES.replace("(last - 4)", "(page - 5)")
    with pytest.raises(FirsttouchError) as error:
        faults(tmp_path, text, 8)
    for part in ("window (window) raised ZeroDivisionError", "line 6", "page=5", "last=1", str(tmp_path / "mine.py")):
        assert part in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize("answer", ["1.5", "None", "page / 2"])
def test_what_is_no_integer_is_told(tmp_path, answer):
    text = RAISES.replace("8 // (last - 4)", answer)
    with pytest.raises(FirsttouchError, match=r"window \(window\) return"):
        faults(tmp_path, text, 8)


def test_answers_out_of_bounds_are_counted(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(WILD)
    assert simulate(pages_in_order(1024), small_machine(), linux(f"+{file}")).answers_bounded == {"window": 2}
    file.write_text(DOUBLING)
    assert simulate(pages_in_order(64), small_machine(), linux(f"+{file}")).answers_bounded == {}


LOCK = """
from firsttouch import hook

@hook("lock")
def lock(page, mm, start, end, cpu, nr_locks):
    return {answer}
"""


def two_at_once(answer, tmp_path):
    """What two threads wait for page-table locks that write to two regions at the same times."""
    h = Hand(regions=[2])
    vma = h.vma(0, 1024)
    for start in (0, 512):
        h.write(h.thread(), vma, *range(start, start + 40))
    file = tmp_path / "mine.py"
    file.write_text(LOCK.format(answer=answer))
    return simulate(h.workload(), small_machine(2), linux(f"+{file}" if answer else "")).lock_wait_ns["page_table"]


def test_a_lock_of_ones_own(tmp_path):
    assert two_at_once("", tmp_path) == two_at_once("page // 512", tmp_path) == two_at_once("cpu", tmp_path) == 0
    assert two_at_once("7", tmp_path) == two_at_once("7 + (cpu + 1) * nr_locks", tmp_path) > 0


SCRUB = """
from firsttouch import hook

@hook("scrub")
def scrub(orders, free_pages, zeroed_pages, load, now_ms, last):
    {body}
"""


def scrubbed(tmp_path, body, sleeps=20):
    """A thread frees 6,144 pages and idles, 10 ms at a time; what was zeroed by when."""
    h = Hand(regions=[12])
    vma, t = h.vma(0, 6144), h.thread()
    h.write(t, vma, *range(6144))
    h.unmap(t, 0, 6144)
    for _ in range(sleeps):
        h.sleep(t, 10_000_000)
        h.write(t, vma, 0)
    file = tmp_path / "mine.py"
    file.write_text(SCRUB.format(body=body))
    here = msgspec.structs.replace(small_machine(), memory_bytes=64 << 20)
    return simulate(h.workload(), here, linux(f"+prezero-4k+{file}"))


def test_what_to_scrub_and_when(tmp_path):
    assert scrubbed(tmp_path, "return -1").zeroed_ahead_bytes == 0
    every, single = scrubbed(tmp_path, "return 0"), scrubbed(tmp_path, "return 0 if last == -1 else -1")
    largest = scrubbed(tmp_path, "return 10 if orders >= 1024 else -1")
    assert every.zeroed_ahead_bytes > largest.zeroed_ahead_bytes > single.zeroed_ahead_bytes > 0
    assert largest.zeroed_ahead_bytes % (4 << 20) == 0
    assert every.answers_bounded == largest.answers_bounded == {}
    assert scrubbed(tmp_path, "return 99").answers_bounded["scrub"] > 0


def test_a_scrubber_that_is_to_be_asked_later_is(tmp_path):
    late = scrubbed(tmp_path, "return 10 if now_ms >= 100 else -15")
    early = scrubbed(tmp_path, "return 10")
    least = min(zeroed for _, zeroed in late.supply)
    rises = [t_ns for t_ns, zeroed in late.supply if t_ns > 20_000_000 and zeroed > least + (2 << 20)]
    assert late.zeroed_ahead_bytes == early.zeroed_ahead_bytes
    assert min(rises) >= 100_000_000


PROMOTE = """
from firsttouch import hook

@hook("promote")
def promote(mapped, touched, shared, page, free_blocks, in_fault):
    return {answer}
"""


@pytest.mark.parametrize(
    ("answer", "nr"),
    [
        ("mapped >= 100", 2 * 100),  # then each region is one superpage
        ("mapped >= 100 and page == 512", 512 + 100),
        ("0", 1024),
        ("free_blocks > 100000", 1024),
        ("1 - in_fault", 1024),  # no daemon runs here
    ],
)
def test_a_promotion_of_ones_own(tmp_path, answer, nr):
    file = tmp_path / "mine.py"
    file.write_text(PROMOTE.format(answer=answer))
    assert simulate(pages_in_order(1024), small_machine(), linux(f"+promote-100+{file}")).faults == nr


@pytest.mark.parametrize(
    ("text", "message"),
    [(SCRUB.format(body="return 1"), "the hook scrub"), (PROMOTE.format(answer="1"), "the hook promote")],
)
def test_a_hook_that_nothing_would_ask_is_told(tmp_path, text, message):
    with pytest.raises(FirsttouchError, match=message) as error:
        faults(tmp_path, text, 8)
    assert "linux-6.18+" in error.value.hint


def blocks_of(path, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_examples_of_the_guide_run(tmp_path):
    guide = Path(__file__).parents[2] / "docs" / "howto" / "your-own-policy.md"
    programs = {block.split("\n")[0]: block for block in blocks_of(guide)}
    mine, half = programs["# mine.py"], programs["# half.py"]
    # 1 + 2 + 4 + 8 + 16 = 31 pages in 5 faults; the other 225 in windows of 32: 8 more.
    assert faults(tmp_path, mine, 256) == 5 + 8
    file = tmp_path / "half.py"
    file.write_text(half)
    outcome = simulate(pages_in_order(1000), small_machine(), linux(f"+prezero-4k+promote-100+{file}"))
    assert outcome.faults == 2 * 256
    assert outcome.promotions == 2
    assert outcome.zeroed_ahead_bytes % 65536 == 0
    assert outcome.answers_bounded == {}
    table = {line.split("`")[1] for line in guide.read_text().splitlines() if line.startswith("| `")}
    assert table == set(NAMES)


def test_a_missing_file_is_told():
    with pytest.raises(FirsttouchError, match=r"no policy file \./nowhere\.py"):
        linux("+./nowhere.py")
