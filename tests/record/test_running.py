"""What /proc says of a process that runs."""

import os
import threading

from firsttouch.record.running import read_maps, read_process, read_threads


def test_maps_of_this_process_hold_this_function():
    address = id(read_maps)
    assert any(start <= address < end and prot & 2 for start, end, _, prot, _, _ in read_maps(os.getpid()))


def test_threads_of_this_process():
    assert threading.get_native_id() in [tid for tid, _ in read_threads(os.getpid())]


def test_a_process_that_is_gone_has_nothing():
    gone = read_process(2**22 + 1)
    assert (gone.mappings, gone.threads) == ([], [])
