"""From the raw records beside a trace to its tables: while recording when a CPU is idle, or when a trace is opened.

There is one way from a ring to a table, whoever takes it: blocks of the raw file in their order, `decode`, `assemble`,
`TraceWriter.commit`. Folding anew from the beginning gives the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from firsttouch.trace.assemble import Assembler
from firsttouch.trace.decode import Rows, layout_of, read_chunk
from firsttouch.trace.raw import Look, RawReader, RingFormat, raw_path
from firsttouch.trace.store import TraceWriter

COMMIT_S = 0.8
COMMIT_ROWS = 100_000  # or as soon as there are so many touches: the log takes these cheaply, see DuckDB row groups
STEP_BYTES = 4 << 20


class Folder:
    """Folds the raw records of one trace into it, step by step."""

    def __init__(self, raw: RawReader, writer: TraceWriter) -> None:
        self.assembler = Assembler(raw.header)
        self.lost = 0  # records that the rings lost, by their own account
        self.skipped = 0  # records that could not be read
        self._raw = raw
        self._writer = writer
        self._layouts = [layout_of(one) for one in raw.header.rings]
        self._due_s = time.monotonic() + COMMIT_S

    def step(self) -> bool:
        """Fold in some of what is there; return whether there was anything. Commits about once a second."""
        begin, rows, cut_ns = self._raw.at, list[Rows](), 0
        while self._raw.at < begin + STEP_BYTES:
            block = self._raw.next()
            if block is None:
                break
            if not isinstance(block, Look):
                self.assembler.add_process(*block)
                continue
            cut_ns = block.cut_ns
            for words, layout in zip(block.chunks, self._layouts, strict=True):
                chunk = read_chunk(words, layout)
                self.lost += chunk.lost
                self.skipped += chunk.skipped
                rows.append(self.assembler.take_chunk(chunk))
        if rows:
            self.assembler.flush(rows, cut_ns)
        if self.assembler.nr_pending >= COMMIT_ROWS or time.monotonic() >= self._due_s:
            self.commit()
        return self._raw.at > begin

    def commit(self) -> None:
        """Store what is assembled."""
        chunks = self.assembler.take()
        if chunks:
            self._writer.meta(lost=self.lost)
            self._writer.commit(chunks)
        self._due_s = time.monotonic() + COMMIT_S

    def finish(self, progress: Callable[[int], None] | None = None) -> None:
        """Fold in all the rest; `progress` is told of touches so far."""
        while self.step():
            if progress is not None:
                progress(self.assembler.nr_touches)
        self.assembler.flush([])
        self.commit()
        symbols = self.assembler.take_symbols()
        if symbols:
            self._writer.commit(symbols)


def warm_up(ring: RingFormat) -> None:
    """Have the kernels compiled before there is anything to fold."""
    read_chunk(np.empty(0, np.uint32), layout_of(ring))


def fold_in(trace: Path, progress: Callable[[int], None] | None = None) -> None:
    """Fold what a killed recorder left beside `trace` into it, from the beginning, and remove it."""
    path = raw_path(trace)
    writer = TraceWriter.reopen(trace)
    try:
        if not writer.finished:  # else it was killed between its last two acts
            with RawReader(path) as raw:
                writer.clear()
                Folder(raw, writer).finish(progress)
    finally:
        writer.leave()
    path.unlink(missing_ok=True)
