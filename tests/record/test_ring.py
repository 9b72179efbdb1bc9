"""A ring in memory, with head and tail as the kernel leaves them."""

import numpy as np

from firsttouch.record.ring import Ring


def ring(head, tail):
    one = Ring.__new__(Ring)
    one.nr_bytes = 64
    one._data = memoryview(bytes(range(64)))
    one._head, one._tail = np.array([head], np.uint64), np.array([tail], np.uint64)
    return one


def test_a_record_that_the_ring_wraps_is_put_together():
    one = ring(64 * 7 + 16, 64 * 6 + 40)
    pieces, end = one.waiting()
    assert b"".join(pieces) == bytes([*range(40, 64), *range(16)])
    assert one._tail[0] == 64 * 6 + 40  # the kernel may not write there yet
    one.free(end)
    assert one._tail[0] == one._head[0]
    assert one.waiting() == ([], 64 * 7 + 16)


def test_what_does_not_wrap_is_one_piece():
    pieces, end = ring(56, 8).waiting()
    assert [bytes(piece) for piece in pieces] == [bytes(range(8, 56))]
    assert end == 56
    assert b"".join(ring(64 + 8, 8).waiting()[0]) == bytes([*range(8, 64), *range(8)])  # full
