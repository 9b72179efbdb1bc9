"""Which parts a policy has: the code that its kernel has and linux-6.18 has not."""

from __future__ import annotations

from firsttouch._packed import packed
from firsttouch.mm import freebsd, khugepaged, neighbours, tablepages, userscrub
from firsttouch.mm.hooks import Hooks
from firsttouch.mm.parts import NO_PARTS, Part
from firsttouch.mm.promotion import promotes
from firsttouch.mm.world import World
from firsttouch.policy import Policy


def parts_of(policy: Policy, hooks: Hooks) -> dict[str, Part]:
    """The parts of `policy` and of a user's functions, by their places in `World.parts`."""
    parts: dict[str, Part] = {}
    if policy.percpu.rules == "page-queues":
        parts |= {"take_block": freebsd.take_block, "free_folio": freebsd.free_folio}
    if policy.zero.scrub == "pagezero":
        parts |= {"next_block": freebsd.next_block, "block_done": freebsd.block_done}
    if hooks.scrub != 0:
        parts |= {"next_block": userscrub.next_block}
    if promotes(policy.superpage) or hooks.promote != 0:
        parts |= {
            "promote_step": khugepaged.promote_step,
            "promote_in_fault": khugepaged.in_fault,
            "promote_fork": khugepaged.fork,
        }
    if policy.fault_ahead.neighbours == "netbsd":
        parts["neighbours"] = neighbours.netbsd_neighbours
    elif policy.fault_ahead.neighbours == "freebsd":
        parts["neighbours"] = neighbours.freebsd_neighbours
    if not policy.fault_ahead.fork_maps:
        parts["fork_tables"] = neighbours.fork_without_tables
    if policy.zero.table_pages != "in-trap":
        parts |= {"table_needed": tablepages.table_needed, "table_freed": tablepages.table_freed}
    return parts


def with_parts(world: World, policy: Policy) -> World:
    """`world` with the parts of `policy` compiled and in their places."""
    parts = parts_of(policy, world.hooks)
    if not parts:
        return world
    layout = packed(world)
    return world._replace(parts=NO_PARTS._replace(**{place: part.place(layout) for place, part in parts.items()}))
