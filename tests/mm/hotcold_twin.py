"""The lists of Linux 2.6.10 in the most obvious Python, in front of a naive buddy: Python lists, head first."""

from buddy_twin import Twin


class HotColdTwin:
    def __init__(self, zone_pages, max_order, zeroed, nr_cpus, batch, has_zeroed, strands):
        self.buddy = Twin(zone_pages, max_order, zeroed)
        self.batch, self.has_zeroed, self.strands = batch, has_zeroed, strands
        self.lists = {
            (cpu, zone, name): []
            for cpu in range(nr_cpus)
            for zone in range(len(zone_pages))
            for name in ("hot", "cold", "zeroed")
        }
        self.freed = {(cpu, zone): [] for cpu in range(nr_cpus) for zone in range(len(zone_pages))}  # oldest first
        self.marks = {"hot": (2 * batch, 6 * batch), "cold": (0, 2 * batch), "zeroed": (0, 2 * batch)}

    def zeroed_pages(self, zone):
        return sum(2**k * len(heads) for (of, z, k), heads in self.buddy.lists.items() if of == zone and z == 1)

    def from_zone(self, zone, k, z):
        for z_of_list in (z, 1 - z):
            pfn = self.buddy.alloc(zone, k, z_of_list)
            if pfn is not None:
                return pfn, z if z_of_list == z else 0, 2**k
        return None

    def alloc_from(self, cpu, zone, name):
        pages, z, came = self.lists[cpu, zone, name], int(name == "zeroed"), 0
        if len(pages) <= self.marks[name][0]:
            for _ in range(self.batch):
                pfn = self.buddy.alloc(zone, 0, z)
                if pfn is not None:
                    pages.append(pfn)
                    came += 1
        if not pages:
            return self.from_zone(zone, 0, z)
        pfn = pages.pop(0)
        if name == "hot" and pfn in self.freed[cpu, zone]:
            self.freed[cpu, zone].remove(pfn)
        return pfn, z, came

    def alloc(self, cpu, zone, k, wants_zeros):
        usable = self.zeroed_pages(zone) >= 2**k
        if k == 0 and not self.strands and self.lists[cpu, zone, "zeroed"]:
            usable = True
        zeros = wants_zeros and self.has_zeroed and usable
        if k == 0:
            return self.alloc_from(cpu, zone, "zeroed" if zeros else "hot")
        return self.from_zone(zone, k, int(zeros))

    def spill(self, cpu, zone, name, nr_pages, z):
        gone, orders = 0, [-1]
        pages = self.lists[cpu, zone, name]
        while pages and gone < nr_pages:
            pfn = pages.pop()
            order = self.buddy.free(zone, pfn, 0, z)
            gone += 1
            if z == 0:
                orders.append(order)
            if pfn in self.freed[cpu, zone]:
                self.freed[cpu, zone].remove(pfn)
        return gone, max(orders)

    def free_to(self, cpu, zone, pfn, name):
        out = 0, -1
        if len(self.lists[cpu, zone, name]) >= self.marks[name][1]:
            out = self.spill(cpu, zone, name, self.batch, int(name == "zeroed"))
        self.lists[cpu, zone, name].insert(0, pfn)
        if name == "hot":
            self.freed[cpu, zone].append(pfn)
        return out

    def free(self, cpu, zone, pfn, k):
        if k:
            return 2**k, self.buddy.free(zone, pfn, k, 0)
        return self.free_to(cpu, zone, pfn, "hot")

    def zero_just_freed(self, cpu, zone):
        """Pages that spilled, or None if no page was freed just now."""
        if not self.freed[cpu, zone] or not self.has_zeroed:
            return None
        pfn = self.freed[cpu, zone].pop()
        self.lists[cpu, zone, "hot"].remove(pfn)
        return self.free_to(cpu, zone, pfn, "zeroed")[0]

    def drain(self, cpu):
        gone, highest = 0, -1
        for zone in range(len(self.buddy.bounds)):
            for name in ("hot", "cold", "zeroed"):
                pages, order = self.spill(cpu, zone, name, 10**9, 0)
                gone, highest = gone + pages, max(highest, order)
        return gone, highest
