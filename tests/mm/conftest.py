"""Hypothesis for the model: with FIRSTTOUCH_FIRST_FAILURE=1 a failure is not shrunk, for the mutation check."""

import os

from hypothesis import Phase, settings

settings.register_profile("first_failure", phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)
if os.environ.get("FIRSTTOUCH_FIRST_FAILURE") == "1":
    settings.load_profile("first_failure")
