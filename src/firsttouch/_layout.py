"""The block of words that describes a NamedTuple to compiled code; made without loading a compiler.

An array is its address and its shape; a number one word; a part, which is a further NamedTuple, its own words in place.
Fields may be C-contiguous arrays, integers and booleans (read-only in kernels), and NamedTuples of these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Field(NamedTuple):
    """Where a field is in the block, and what it is."""

    name: str
    kind: str  # "int", "bool", the dtype of an array, or the class of a part
    ndim: int  # of an array
    at: int  # its first word, counted from the start of the tuple it is in
    part: tuple[Field, ...]  # of a part


def lay_out(state: Any) -> tuple[tuple[Field, ...], NDArray[np.int64]]:
    """The fields of a tuple, and its block. Both are of use while the arrays live. ValueError for another layout."""
    words: list[int] = []
    fields = _append(state, words)
    return fields, np.array(words, np.int64)


def _append(state: Any, words: list[int]) -> tuple[Field, ...]:
    fields: list[Field] = []
    for name, value in zip(state._fields, state, strict=True):
        at = len(words)
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"{name} of {type(state).__name__} is not C-contiguous")
            words += [value.ctypes.data, *value.shape]
            fields.append(Field(name, value.dtype.str, value.ndim, at, ()))
        elif hasattr(value, "_fields"):
            part: list[int] = []
            inner = _append(value, part)
            words += part
            fields.append(Field(name, type(value).__name__, 0, at, inner))
        else:
            words.append(int(value))
            fields.append(Field(name, "bool" if isinstance(value, bool | np.bool_) else "int", 0, at, ()))
    return tuple(fields)
