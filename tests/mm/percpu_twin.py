"""Per-CPU lists in the most obvious Python, in front of a naive buddy: deques, freed blocks at the left."""

from collections import deque

from buddy_twin import Twin

LISTED = (0, 1, 2, 3, 9)


class PcpTwin:
    def __init__(self, zone_pages, max_order, zeroed, nr_cpus, limits, has_zeroed, strands):
        self.buddy = Twin(zone_pages, max_order, zeroed)
        self.nr_zeroed = [pages * zeroed for pages in zone_pages]  # on the zeroed lists of the buddy
        self.limits = limits  # [zone] (batch, high_min, high_max)
        self.has_zeroed, self.strands = has_zeroed, strands
        self.cpus = {
            (cpu, zone): {
                "lists": {(k, z): deque() for k in LISTED for z in (0, 1)},
                "high": limits[zone][1],
                "factor": 0,
                "freed": 0,
                "high_order_before": False,
            }
            for cpu in range(nr_cpus)
            for zone in range(len(zone_pages))
        }

    def kept(self, cpu, zone):
        return sum(len(blocks) * 2**k for (k, _), blocks in self.cpus[cpu, zone]["lists"].items())

    def from_buddy(self, zone, k, z):
        pfn = self.buddy.alloc(zone, k, z)
        if pfn is not None and z:
            self.nr_zeroed[zone] -= 2**k
        return pfn

    def to_buddy(self, zone, pfn, k, z):
        if z:
            self.nr_zeroed[zone] += 2**k
        return self.buddy.free(zone, pfn, k, z)

    def refill(self, cpu, zone, k, z):
        """Pages that came; they go to the right end, in the order in which they came."""
        own = self.cpus[cpu, zone]
        batch, low, top = self.limits[zone]
        grown = batch * 2 ** own["factor"] if k == 0 else batch
        if low < top:
            own["high"] = min(own["high"] + grown, top)
        if k == 0:
            room = max(own["high"] - self.kept(cpu, zone) - batch, batch)
            if grown <= room:
                own["factor"] = min(own["factor"] + 1, 5)
            grown = min(grown, room)
        blocks = grown if grown == 1 else max(grown // 2**k, 2)
        came = 0
        for _ in range(blocks):
            pfn = self.from_buddy(zone, k, z)
            if pfn is None:
                break
            own["lists"][k, z].append(pfn)
            came += 2**k
        return came

    def alloc(self, cpu, zone, k, wants_zeros):
        wants_zeros = wants_zeros and self.has_zeroed
        enough = self.nr_zeroed[zone] >= 2**k
        if k not in LISTED:
            for z in (1, 0) if wants_zeros and enough else (0, 1):
                pfn = self.from_buddy(zone, k, z)
                if pfn is not None:
                    return pfn, z, 2**k
            return None
        own = self.cpus[cpu, zone]
        own["freed"] //= 2
        came = 0
        zeroed_usable = enough or not self.strands
        for z in (1, 0) if wants_zeros and zeroed_usable else (0,):
            if not own["lists"][k, z] and (z == 0 or enough):
                came = self.refill(cpu, zone, k, z)
            if own["lists"][k, z]:
                return own["lists"][k, z].popleft(), z, came
        if own["lists"][k, 1] and not self.strands:
            return own["lists"][k, 1].popleft(), 1, 0
        pfn = self.from_buddy(zone, k, 1)
        return None if pfn is None else (pfn, 1, 2**k)

    def spill(self, cpu, zone, first, nr_pages):
        lists = self.cpus[cpu, zone]["lists"]
        turn = [(k, z) for k in LISTED for z in (0, 1)]
        turn = turn[turn.index(first) :] + turn[: turn.index(first)]
        gone, orders = 0, [-1]
        for k, z in turn:
            while lists[k, z] and gone < nr_pages:
                order = self.to_buddy(zone, lists[k, z].pop(), k, z)
                gone += 2**k
                if z == 0:
                    orders.append(order)
        return gone, max(orders)

    def free(self, cpu, zone, pfn, k, z):
        z = z if self.has_zeroed else 0
        if k not in LISTED:
            order = self.to_buddy(zone, pfn, k, z)
            return 2**k, -1 if z else order
        own = self.cpus[cpu, zone]
        batch, low, top = self.limits[zone]
        own["factor"] //= 2
        own["lists"][k, z].appendleft(pfn)
        kept = self.kept(cpu, zone)
        long_run = own["high_order_before"] and own["freed"] >= batch + low // 2 and kept >= batch
        is_high = 1 <= k <= 3
        own["high_order_before"] = is_high
        if own["freed"] < 32 * batch:
            own["freed"] += 2**k
        if is_high and long_run:
            own["high"] = max(own["high"] - 32 * batch, low)
            return self.spill(cpu, zone, (k, z), 32 * batch)
        high = own["high"]
        if kept < high:
            return 0, -1
        if low < top and high < own["freed"] + batch:
            own["high"] = min(own["freed"] + batch, top)
        return self.spill(cpu, zone, (k, z), min(max(own["freed"], batch), high - batch))
