"""A trace on disk: made by `TraceWriter`, read by `Trace`.

One writer, one DuckDB file. Every `commit()` is a transaction: a writer that is killed loses what came after the last
one, and the file opens as it was then. What a killed recorder had not folded in yet is in the raw file beside it (see
`raw`), and is folded in when the trace is opened. Nothing else writes a trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.trace.raw import raw_path
from firsttouch.trace.schema import META_KEYS, META_TYPES, SCHEMA_VERSION, TABLES

Columns = Mapping[str, NDArray[Any]]


class TraceWriter:
    """Writes a new trace. Use as a context manager; `close()` marks it finished and folds in the log."""

    def __init__(self, path: Path | str, *, force: bool = False) -> None:
        self.path = Path(path)
        if self.path.exists() and not force:
            raise FirsttouchError(
                f"{self.path} exists already", "use --force to replace it, or -o to name another file"
            )
        try:
            for old in (self.path, wal_path(self.path), raw_path(self.path)):
                old.unlink(missing_ok=True)
            # the log is folded in at the end: a checkpoint now and then would take CPU time from what is recorded
            self._db = duckdb.connect(str(self.path), config={"threads": 1, "checkpoint_threshold": "256MB"})
        except (OSError, duckdb.Error) as error:
            raise FirsttouchError(
                f"cannot write {self.path}: {_first_line(error)}", "name a folder that exists and is yours"
            ) from None
        self._meta: dict[str, Any] = {"schema": SCHEMA_VERSION, "finished": False}
        self.clear()

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """The writer of a trace that is there, with its meta values. Raises duckdb.Error, ValueError if it is none."""
        writer = cls.__new__(cls)
        writer.path = path
        writer._db = duckdb.connect(str(path))
        try:
            writer._meta = {key: json.loads(value) for key, value in writer._db.execute("FROM meta").fetchall()}
        except BaseException:
            writer._db.close()
            raise
        return writer

    @property
    def finished(self) -> bool:
        """Whether the trace has come to an orderly end."""
        return self._meta.get("finished") is True

    def clear(self) -> None:
        """Make all tables anew, without rows, with the meta values."""
        self._db.execute("BEGIN")
        for table, columns in TABLES.items():
            fields = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            self._db.execute(f'CREATE OR REPLACE TABLE "{table}" ({fields})')
        self._store_meta()
        self._db.execute("COMMIT")

    def meta(self, **values: Any) -> None:
        """Set values of `meta` (anything JSON can hold); they are stored at the next commit."""
        self._meta.update(values)

    def commit(self, chunks: Mapping[str, Columns]) -> None:
        """Store rows, `{table: {column: array}}` with all columns of a table, and the meta values, in one transaction.

        Raises FirsttouchError when the disk is full; what was committed before stays readable.
        """
        try:
            self._db.execute("BEGIN")
            for table, columns in chunks.items():
                rows = {name: columns[name] for name in TABLES[table]}
                if len(next(iter(rows.values()))):
                    self._db.execute(f'INSERT INTO "{table}" SELECT * FROM rows')
            self._store_meta()
            self._db.execute("COMMIT")
        except (duckdb.Error, OSError) as error:
            raise FirsttouchError(
                f"cannot write to {self.path}: {_first_line(error)}",
                "free some space; all that was recorded up to the last second is in the file",
            ) from None

    def _store_meta(self) -> None:
        self._db.execute("DELETE FROM meta")
        texts = [json.dumps(value) for value in self._meta.values()]
        rows = {"key": np.array(list(self._meta), object), "value": np.array(texts, object)}  # noqa: F841 (SQL reads it)
        self._db.execute("INSERT INTO meta SELECT * FROM rows")

    def close(self) -> None:
        """Mark the trace finished, commit, and close the file."""
        self.meta(finished=True)
        self.commit({})
        self.leave()

    def leave(self) -> None:
        """Close the file as it is."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()


class Trace:
    """A recorded trace, opened for reading. `meta` is the dictionary of `schema.META_KEYS`.

    `progress` is told of the touches found so far while what a killed recorder left is folded in.
    """

    def __init__(self, path: Path | str, progress: Callable[[int], None] | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FirsttouchError(f"there is no trace {self.path}", "make one: firsttouch record -o FILE -- COMMAND")
        try:
            self._db = _open(self.path, progress)
        except (duckdb.Error, OSError, ValueError) as error:
            raise _unreadable(self.path, error) from None
        try:
            self.meta = self._read_meta()
        except BaseException:
            self._db.close()
            raise

    def _read_meta(self) -> dict[str, Any]:
        """The meta values, each as it can be. Raises FirsttouchError."""
        try:
            rows = self._db.execute("SELECT key, value FROM meta").fetchall()
            meta: dict[str, Any] = {key: json.loads(value) for key, value in rows}
        except (duckdb.Error, OSError, ValueError) as error:
            raise _unreadable(self.path, error) from None
        schema = meta.get("schema")
        if not isinstance(schema, int):
            raise FirsttouchError(
                f"{self.path} is a DuckDB file, but not a trace", "record one: firsttouch record -o FILE -- COMMAND"
            )
        if schema > SCHEMA_VERSION:
            raise FirsttouchError(
                f"{self.path} has trace schema {schema}; this firsttouch reads up to {SCHEMA_VERSION}",
                "upgrade: pip install --upgrade firsttouch",
            )
        for key in META_KEYS:
            meta.setdefault(key, None)
        _check_meta(self.path, meta)
        return meta

    def table(self, name: str, order_by: str = "") -> dict[str, NDArray[Any]]:
        """All rows of a table as arrays, one per column; `order_by` is SQL, e.g. "t_ns"."""
        order = f" ORDER BY {order_by}" if order_by else ""
        try:
            columns = self._db.execute(f'SELECT * FROM "{name}"{order}').fetchnumpy()
        except duckdb.Error as error:
            raise FirsttouchError(
                f"cannot read table {name} of {self.path}: {_first_line(error)}", "the file is damaged; record again"
            ) from None
        return {key: np.asarray(values) for key, values in columns.items()}

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of any SQL query on the trace's tables. Raises FirsttouchError with DuckDB's message."""
        try:
            return self._db.execute(query).fetchall()
        except duckdb.Error as error:
            raise FirsttouchError(f"{self.path}: {_first_line(error)}") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreadable(path: Path, error: Exception) -> FirsttouchError:
    return FirsttouchError(
        f"{path} is not a readable trace: {_first_line(error)}",
        "it is truncated, damaged, or not a trace; record again: firsttouch record -o FILE -- COMMAND",
    )


def _check_meta(path: Path, meta: dict[str, Any]) -> None:
    """Raise FirsttouchError for a value that is not what `schema.META_TYPES` says, or a number that cannot be."""
    for key, kind in META_TYPES.items():
        value = meta.get(key)
        if value is None:
            continue
        good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if good and kind is int:
            good = value.bit_count() == 1 if key == "page_bytes" else value >= 0
        if not good:
            raise FirsttouchError(
                f"{path}: meta.{key} is {value!r}, which it cannot be", "the file is damaged; record again"
            )


def wal_path(trace: Path) -> Path:
    """DuckDB's log of a trace, where its writer was killed."""
    return trace.with_name(trace.name + ".wal")


def _open(path: Path, progress: Callable[[int], None] | None) -> duckdb.DuckDBPyConnection:
    """Open a trace; what a killed recorder left beside one that may be written is folded in first."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        if raw_path(path).exists():
            from firsttouch.trace.fold import fold_in  # which compiles kernels

            fold_in(path, progress)
        elif wal_path(path).exists():
            duckdb.connect(str(path)).close()
    return duckdb.connect(str(path), read_only=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
