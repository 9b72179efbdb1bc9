"""What if: a trace replayed under several policies, and what to do about it.

`evaluate.py` makes the outcomes, `advice.py` draws the conclusion from them.
"""

from firsttouch._verbs import make_callable
from firsttouch.whatif.evaluate import DEFAULT_POLICIES, TraceFacts, WhatIf, whatif

__all__ = ["DEFAULT_POLICIES", "TraceFacts", "WhatIf", "whatif"]

make_callable(__name__, "firsttouch.whatif.evaluate")
