"""The daemons in the most obvious Python: generators that yield one block after another, over a naive buddy."""

from buddy_twin import Twin


class ScrubTwin:
    """`zones_per_node` zones a node; `by_fraction` is V8."""

    def __init__(self, zone_pages, max_order, zones_per_node, start, stop, by_fraction):
        self.buddy = Twin(zone_pages, max_order, 0)
        self.orders = range(max_order + 1)
        self.start, self.stop, self.by_fraction = start, stop, by_fraction
        nr_zones = len(zone_pages)
        n = zones_per_node
        self.zones = [range(first, first + n) for first in range(0, nr_zones, n)]
        self.passes = [None] * len(self.zones)
        self.in_flight_pages = [0] * nr_zones

    def pages(self, zone, z):
        return sum(2**k * len(self.buddy.lists[zone, z, k]) for k in self.orders)

    def freed(self, zone, order):
        """After a free that merged to `order`: whether a daemon woke."""
        node = next(n for n, zones in enumerate(self.zones) if zone in zones)
        free = self.pages(zone, 0) + self.pages(zone, 1) + self.in_flight_pages[zone]
        due = self.pages(zone, 1) < free * self.start // 1024 if self.by_fraction else order >= self.start
        if not due or self.passes[node] is not None:
            return False
        self.passes[node] = self.run_v8(node) if self.by_fraction else self.run(node)
        return True

    def run(self, node):
        found = True
        while found:
            found = False
            for zone in self.zones[node]:
                nonempty = [k for k in self.orders if k >= self.stop and self.buddy.lists[zone, 0, k]]
                if nonempty:
                    found = True
                    yield self.buddy.lists[zone, 0, nonempty[-1]].pop(0), nonempty[-1], zone

    def run_v8(self, node):
        for zone in self.zones[node]:
            for k in self.orders:
                plain, zeroed = self.buddy.lists[zone, 0, k], self.buddy.lists[zone, 1, k]
                while plain and len(zeroed) < len(plain) * self.stop // 1024:
                    yield plain.pop(0), k, zone

    def next_block(self, node):
        block = next(self.passes[node], None)
        if block is None:
            self.passes[node] = None
        else:
            self.in_flight_pages[block[2]] += 2 ** block[1]
        return block

    def done(self, pfn, k, zone):
        self.in_flight_pages[zone] -= 2**k
        return self.buddy.free(zone, pfn, k, 1)
