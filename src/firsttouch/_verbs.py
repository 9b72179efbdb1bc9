"""Packages that are also functions: `ft.record(...)` and `ft.whatif(...)`.

A package's name in its parent is the package as soon as anything imports it, so a function of the same name there would
come and go with the order of imports. Instead the package itself is callable, and does what its function does.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str) -> None:
    """Calling `package` calls the function of the same last name in `module`, which is imported then."""
    name = package.rpartition(".")[2]

    class Verb(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(module), name)(*args, **options)

    Verb.__call__.__doc__ = f"See {module}.{name}."
    sys.modules[package].__class__ = Verb
