"""A pool of prezeroed memory beneath NumPy.

>>> import firsttouch as ft
>>> ft.pool.install("4GiB")  # doctest: +SKIP

`arena.py` keeps the memory, on the buddy allocator of the model; `handler.py` is what NumPy calls; `scrubber.py` zeroes
in the background; `lifecycle.py` installs. Nothing of that is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from firsttouch._verbs import make_callable

if TYPE_CHECKING:
    from firsttouch.pool.lifecycle import Pool as Pool
    from firsttouch.pool.lifecycle import install as install
    from firsttouch.pool.lifecycle import install_from_environment as install_from_environment
    from firsttouch.pool.lifecycle import installed as installed
    from firsttouch.pool.lifecycle import stats as stats
    from firsttouch.pool.lifecycle import trim as trim
    from firsttouch.pool.lifecycle import uninstall as uninstall

_NAMES = ("Pool", "install", "install_from_environment", "installed", "stats", "trim", "uninstall")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module("firsttouch.pool.lifecycle"), name)
    raise AttributeError(f"module 'firsttouch.pool' has no attribute {name!r}")


make_callable(__name__, "firsttouch.pool.lifecycle")
