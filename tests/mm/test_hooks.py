"""A user's decisions: what the model asks, what it does with the answers, and what a mistake is told."""

import pytest
from hand_workload import Hand, linux, small_machine

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


def test_a_missing_file_is_told():
    with pytest.raises(FirsttouchError, match=r"no policy file \./nowhere\.py"):
        linux("+./nowhere.py")
