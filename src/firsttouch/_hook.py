"""`@hook`: marks a function of a policy file as the model's decision. What each hook means: `firsttouch.mm.hooks`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from firsttouch.errors import FirsttouchError

F = TypeVar("F", bound=Callable[..., int])

ARGUMENTS = {
    "window": ("run", "last", "page", "start", "end", "free_pages"),
    "order": ("allowed", "room", "page", "start", "end", "free_pages"),
    "scrub": ("orders", "free_pages", "zeroed_pages", "load", "now_ms", "last"),
    "lock": ("page", "mm", "start", "end", "cpu", "nr_locks"),
    "promote": ("mapped", "touched", "shared", "page", "free_blocks", "in_fault"),
}
NAMES = tuple(ARGUMENTS)
NR_ARGUMENTS = 6
MARK = "_firsttouch_hook"


def hook(name: str) -> Callable[[F], F]:
    """Make the decorated function the model's decision `name`. Raises FirsttouchError for an unknown name or arity."""
    if name not in NAMES:
        raise FirsttouchError(f"there is no hook {name!r}", f"there are {', '.join(NAMES)}")

    def mark(function: F) -> F:
        nr = len(inspect.signature(function).parameters)
        if nr != NR_ARGUMENTS:
            raise FirsttouchError(
                f"hook {name} takes {NR_ARGUMENTS} numbers; {function.__name__} takes {nr}",
                "see docs/howto/your-own-policy.md",
            )
        setattr(function, MARK, name)
        return function

    return mark
