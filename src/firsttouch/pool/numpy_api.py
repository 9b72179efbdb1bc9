"""NumPy's memory handlers, through the slots of its C API: the default one and the context's own.

NumPy keeps the order of its C API's slots within a major version. Before a slot is called or followed, what can be
asked from Python has to agree with what is expected there; what does not agree is a NotHere.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from importlib import import_module
from typing import Any

from firsttouch.errors import NotHere

_CAPSULE = b"mem_handler"
_GET_ABI, _SET_HANDLER, _GET_HANDLER, _DEFAULT_HANDLER = 0, 304, 305, 306
_ABI = 0x02000000


class Allocator(ctypes.Structure):
    """`PyDataMemAllocator`: one context and four functions."""

    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class Handler(ctypes.Structure):
    """`PyDataMem_Handler`."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", Allocator))


class NumpyApi:
    """The handlers of the NumPy in this process."""

    def __init__(self) -> None:
        if sys.platform != "linux" or struct.calcsize("P") != 8:
            raise NotHere("the pool needs 64-bit Linux", "run without it")
        if sys.implementation.name != "cpython":
            raise NotHere(f"the pool needs CPython, this is {sys.implementation.name}", "run without it")
        import numpy as np

        if np.__version__.split(".")[0] != "2":
            raise NotHere(f"the pool knows the C API of NumPy 2, this is {np.__version__}", "install numpy>=2,<3")
        umath = import_module("numpy._core._multiarray_umath")

        self._python: Any = ctypes.pythonapi
        self._python.PyCapsule_GetPointer.restype = ctypes.c_void_p
        self._python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        self._python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
        self._python.PyCapsule_New.restype = ctypes.py_object
        self._python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        table = ctypes.cast(self._python.PyCapsule_GetPointer(umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        abi = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[_GET_ABI])()
        if abi != _ABI:
            raise NotHere(f"NumPy {np.__version__} has C ABI {abi:#x}, the pool knows {_ABI:#x}", "run without it")
        default = ctypes.cast(table[_DEFAULT_HANDLER], ctypes.POINTER(ctypes.py_object))[0]
        self._set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
        self._get = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])
        self.default = self._handler(default)
        if (self.default.name, self.default.version) != (b"default_allocator", 1) or not all(
            getattr(self.default.allocator, name) for name in ("malloc", "calloc", "realloc", "free")
        ):
            raise NotHere(
                f"NumPy {np.__version__} has a default memory handler that the pool does not know: "
                f"{self.default.name!r}, version {self.default.version}",
                "run without it",
            )
        named = umath.get_handler_name()
        if self._handler(self._get()).name.decode(errors="replace") != named:
            raise NotHere(f"NumPy {np.__version__} has its handlers elsewhere than the pool expects", "run without it")

    def _handler(self, capsule: Any) -> Handler:
        if not self._python.PyCapsule_IsValid(capsule, _CAPSULE):
            raise NotHere("this NumPy keeps no memory handler where the pool expects one", "run without the pool")
        return Handler.from_address(self._python.PyCapsule_GetPointer(capsule, _CAPSULE))

    def make_capsule(self, name: bytes, allocator: Allocator) -> Any:
        """A handler for `set`. It lives for ever: arrays of this handler may outlive everything else in Python."""
        handler = Handler(name, 1, allocator)
        capsule = self._python.PyCapsule_New(ctypes.addressof(handler), _CAPSULE, None)
        for kept in (handler, capsule):
            self._python.Py_IncRef(ctypes.py_object(kept))
        return capsule

    def set(self, capsule: Any) -> Any:
        """Make a handler that of this context; returns the one before."""
        return self._set(capsule)
