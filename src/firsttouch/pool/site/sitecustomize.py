"""Puts the pool beneath NumPy when the program imports NumPy, where FIRSTTOUCH_POOL says so.

Python imports a module of this name at its start when its folder is on PYTHONPATH, as `firsttouch run` puts it. The
one that it hides is run as well.
"""

import os
import sys
from collections.abc import Sequence
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _NumpyFinder:
    """Finds NumPy as it is found without, once, and has it followed by the pool."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if name != "numpy":
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec("numpy")
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            try:
                from firsttouch.pool import install_from_environment
            except ImportError as error:
                print(f"firsttouch pool: not installed: {error}", file=sys.stderr)
            else:
                install_from_environment()

        loader.exec_module = execute_and_install
        return spec


if os.environ.get("FIRSTTOUCH_POOL", "") not in ("", "0"):
    sys.meta_path.insert(0, _NumpyFinder())

_hidden = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.abspath(entry) != _HERE])
if _hidden is not None and _hidden.loader is not None:
    _module = util.module_from_spec(_hidden)
    sys.modules["sitecustomize"] = _module
    _hidden.loader.exec_module(_module)
