"""pv chunks: a state machine whose reference is lists of dicts, and places worked out by hand."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firsttouch._jit import state_kernel
from firsttouch._packed import packed
from firsttouch.mm import pv as module
from firsttouch.mm.pv import (
    CHUNK_ENTRIES,
    FREE_CHUNKS,
    NO_CHUNK,
    NO_PLACE,
    NR_CREATED,
    NR_DESTROYED,
    add_chunk,
    add_entry,
    check,
    free_chunk,
    make_pv,
    move_pv,
    needs_chunk,
    remove_entry,
)
from firsttouch.mm.vmobject import place_files
from firsttouch.workload import ANON, NO_CACHE_PAGE, WRITABLE, Vmas

NR_MMS, NR_SLOTS = 2, 2


def empty(nr_locks=256):
    return make_pv(NR_MMS, NR_SLOTS, np.zeros(0, np.int64), 5000, nr_locks, False)


@state_kernel
def wants_chunk(pv, mm):
    return needs_chunk(pv, mm)


@state_kernel
def insert(pv, mm, entry, frame):
    if needs_chunk(pv, mm) and not add_chunk(pv, mm):
        return False
    add_entry(pv, mm, entry, frame)
    return True


@state_kernel
def remove(pv, mm, entry):
    chunk = remove_entry(pv, mm, entry)
    if chunk != NO_CHUNK:
        free_chunk(pv, chunk)
    return chunk


@state_kernel
def move(pv, source, target):
    move_pv(pv, source, target)


class Chunks(RuleBasedStateMachine):
    """Each address space's chunks are a list of dicts {index: (entry, frame)}, in the order of the kernel's list."""

    def __init__(self):
        super().__init__()
        self.pv = empty()
        self.packed = packed(self.pv)
        self.chunks = [[], []]
        self.created = self.destroyed = 0

    def entries(self, mm):
        return sorted(entry for chunk in self.chunks[mm] for entry, _ in chunk.values())

    @rule(mm=st.integers(0, 1), first=st.integers(0, 511), nr=st.sampled_from([1, 2, 50, 168, 200]))
    def enter(self, mm, first, nr):
        taken = set(self.entries(mm))
        for entry in range(mm * 512 + first, min((mm + 1) * 512, mm * 512 + first + nr)):
            if entry in taken:
                continue
            chunks = self.chunks[mm]
            assert wants_chunk(self.packed, mm) == (not chunks or len(chunks[0]) == CHUNK_ENTRIES)
            if not chunks or len(chunks[0]) == CHUNK_ENTRIES:
                chunks.insert(0, {})
                self.created += 1
            index = next(i for i in range(CHUNK_ENTRIES) if i not in chunks[0])
            chunks[0][index] = (entry, entry // 7)
            if len(chunks[0]) == CHUNK_ENTRIES:
                chunks.append(chunks.pop(0))
            assert insert(self.packed, mm, entry, entry // 7)

    @precondition(lambda self: any(self.chunks))
    @rule(data=st.data(), nr=st.sampled_from([1, 3, 100, 400]))
    def take_away(self, data, nr):
        mm = data.draw(st.sampled_from([mm for mm in range(2) if self.chunks[mm]]))
        entries = self.entries(mm)
        first = data.draw(st.integers(0, len(entries) - 1))
        for entry in entries[first : first + nr]:
            chunks = self.chunks[mm]
            chunk = next(c for c in chunks if any(e == entry for e, _ in c.values()))
            del chunk[next(i for i, (e, _) in chunk.items() if e == entry)]
            at = next(i for i, other in enumerate(chunks) if other is chunk)
            chunks.pop(at)
            if chunk:
                chunks.insert(0, chunk)
            else:
                self.destroyed += 1
            assert (remove(self.packed, mm, entry) != NO_CHUNK) == (not chunk)

    @precondition(lambda self: any(0 < len(self.entries(mm)) < 512 for mm in range(2)))
    @rule(data=st.data())
    def move_one(self, data):
        mm = data.draw(st.sampled_from([mm for mm in range(2) if 0 < len(self.entries(mm)) < 512]))
        entries = self.entries(mm)
        source = data.draw(st.sampled_from(entries))
        target = data.draw(st.sampled_from(sorted({*range(mm * 512, mm * 512 + 512)} - {*entries})))
        for chunk in self.chunks[mm]:
            for index, (entry, frame) in chunk.items():
                if entry == source:
                    chunk[index] = (target, frame)
        move(self.packed, source, target)

    @invariant()
    def holds_what_the_reference_holds(self):
        assert check(self.pv) == []
        for mm in range(NR_MMS):
            chunk, found = int(self.pv.first[mm]), []
            while chunk != NO_CHUNK:
                places = range(chunk * CHUNK_ENTRIES, (chunk + 1) * CHUNK_ENTRIES)
                found.append(
                    {
                        i: (int(self.pv.entry[place]), int(self.pv.frame[place]))
                        for i, place in enumerate(places)
                        if self.pv.entry[place] >= 0
                    }
                )
                chunk = int(self.pv.next[chunk])
            assert found == self.chunks[mm]
        assert self.pv.counts[NR_CREATED] == self.created
        assert self.pv.counts[NR_DESTROYED] == self.destroyed


Chunks.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestChunks = Chunks.TestCase


def test_168_entries_to_a_chunk_and_one_more_needs_another():
    pv = empty()
    for entry in range(169):
        insert(packed(pv), 0, entry, 0)
    assert pv.counts[NR_CREATED] == 2
    assert pv.place_of[167] == 167 + pv.place_of[0]
    assert pv.place_of[168] // CHUNK_ENTRIES != pv.place_of[0] // CHUNK_ENTRIES
    assert pv.place_of[169] == NO_PLACE


def test_as_many_chunks_as_page_tables_can_need_and_no_more():
    """2 slots of 512 entries need ceil(1024 / 168) = 7 chunks, and 2 address spaces one more each that is not full."""
    pv = empty()
    assert pv.counts[FREE_CHUNKS] == 7 + 2
    for entry in range(1024):
        assert insert(packed(pv), entry // 512, entry, 0)
    while add_chunk(packed(pv), 0):
        pass
    assert pv.counts[FREE_CHUNKS] == 0


def test_frames_share_locks_as_the_scheme_says():
    assert empty(nr_locks=0).nr_locks == 10  # 5000 pages
    assert empty(nr_locks=1).nr_locks == 1
    assert [module.frame_of(page) for page in (0, 511, 512, 4096)] == [0, 0, 1, 8]


def test_files_are_cached_behind_memory_and_known_by_what_they_share():
    """Rows 0, 2 and 3 map overlapping parts of one file, 1 and 5 unknown ones; 4 is anonymous."""
    none = NO_CACHE_PAGE
    vmas = Vmas(
        start=np.array([0, 0, 50, 90, 0, 7], np.int64),
        end=np.array([40, 30, 60, 100, 99, 8], np.int64),
        flags=np.array([0, 0, WRITABLE, 0, ANON, 0], np.int32),
        cache_page=np.array([0, none, 40, 35, none, none], np.int64),
    )
    files, file, end = place_files(vmas, 1000)
    assert files.skipped[[0, 1, 2, 3, 5]].tolist() == [0, 0, 40, 35, 0]
    assert len(set(files.first[[0, 2, 3]])) == 1
    assert len(files.frame) == 4 + 2 + 1  # 50, 30 and 1 pages
    assert set(files.frame) == {2}  # from the next frame on
    assert end == 3 * 512
    assert file[0] == file[2] == file[3]  # 35 to 45 joins 0 to 40 and 40 to 50
    assert len({file[0], file[1], file[5]}) == 3


def test_clusters_of_small_files_lie_by_turns_and_large_files_in_one_piece():
    """20 files of 32 pages and a large one: two frames of that, then first clusters 0 to 19, then second ones."""
    size = np.array([32] * 20 + [1024], np.int64)
    vmas = Vmas(np.zeros(21, np.int64), size, np.zeros(21, np.int32), np.cumsum(size) - size)
    files, _, end = place_files(vmas, 512)
    assert [files.frame[files.first[20] + i] for i in (0, 31, 32, 63)] == [1, 1, 2, 2]
    frames = [files.frame[first : first + 2].tolist() for first in files.first[:20]]
    assert frames == [[3, 3]] * 12 + [[3, 4]] * 8  # 32 clusters a frame: 20 first ones and 12 second ones
    assert end == 5 * 512
