"""This host in the terms of the model: its machine, and the policy that its settings amount to."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from firsttouch import machine as machines
from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.host.probe import HostFacts
from firsttouch.machine import Machine
from firsttouch.policy import Policy
from firsttouch.units import PMD_ORDER

BASE = "linux-6.18"  # every page by itself: what a recording is made under


def host_machine(say: Callable[[str], None]) -> tuple[Machine, str]:
    """This host's machine, measured if need be, and a warning when it is not really this host's.

    Raises FirsttouchError when it cannot be measured and no preset ships either.
    """
    from firsttouch.host import store

    found = store.find()
    if found is not None:
        return found, ""
    from firsttouch.host.calibrate import calibrate

    say("measuring what faults cost on this machine (once, about 10 s; `firsttouch calibrate` does it better)")
    try:
        measured = calibrate(quick=True, accept_noise=True)
    except FirsttouchError as error:
        presets = machines.presets()
        if not presets:
            raise
        preset = machines.load(presets[0])
        return preset, f"this machine could not be measured ({error.message}): costs are those of {preset.name}"
    try:
        store.save(measured)
    except (FirsttouchError, OSError) as error:
        return measured, f"the measurement could not be stored and will be made again: {error}"
    return measured, ""


def present_policy(facts: HostFacts) -> Policy:
    """The policy that equals the host's THP and mTHP settings.

    A size set to `inherit` follows `thp`; the superpage's own size is order 9. Sizes that are set to `madvise` have no
    preset, so they are named in parentheses.
    """
    settings = {int(match[1]): value for key, value in facts.mthp.items() if (match := re.search(r"(\d+)", key))}
    settings = {size: facts.thp if value == "inherit" else value for size, value in settings.items()}
    pmd_kib = (facts.page_bytes << PMD_ORDER) // 1024
    name = BASE + {"always": "+thp", "madvise": "+thp-madvise"}.get(settings.pop(pmd_kib, facts.thp), "")
    advised = []
    for size, value in sorted(settings.items()):
        order = (size * 1024 // facts.page_bytes).bit_length() - 1
        if value == "always" and 2 <= order < PMD_ORDER:
            name += f"+mthp-{size}k"
        elif value == "madvise" and 2 <= order < PMD_ORDER:
            advised.append(size)
    policy = policies.load(name)
    if advised:
        orders = sorted({(size * 1024 // facts.page_bytes).bit_length() - 1 for size in advised})
        policy = msgspec.structs.replace(
            policy,
            name=f"{name} (advised: {', '.join(f'{size}k' for size in advised)})",
            superpage=msgspec.structs.replace(policy.superpage, mthp_madvise=orders),
        )
    return policy
