"""A buddy allocator in the most obvious Python: each list is a Python list of first pages, head first."""


class Twin:
    def __init__(self, zone_pages, max_order, zeroed):
        self.max_order = max_order
        self.bounds, self.lists, start = [], {}, 0
        for zone, pages in enumerate(zone_pages):
            self.bounds.append((start, start + pages))
            for z in (0, 1):
                for k in range(max_order + 1):
                    self.lists[zone, z, k] = []
            page = start
            while page < start + pages:
                k = max(k for k in range(max_order + 1) if page % 2**k == 0 and page + 2**k <= start + pages)
                self.lists[zone, zeroed, k].append(page)
                page += 2**k
            start += pages

    def alloc(self, zone, k, z):
        for larger in range(k, self.max_order + 1):
            if self.lists[zone, z, larger]:
                page = self.lists[zone, z, larger].pop(0)
                for rest in range(larger - 1, k - 1, -1):
                    self.lists[zone, z, rest].insert(0, page + 2**rest)
                return page
        return None

    def free(self, zone, page, k, z):
        is_upper_half = (page // 2**k) % 2 == 1
        mate = page - 2**k if is_upper_half else page + 2**k
        if k < self.max_order and mate in self.lists[zone, z, k]:
            self.lists[zone, z, k].remove(mate)
            return self.free(zone, min(page, mate), k + 1, z)
        self.lists[zone, z, k].insert(0, page)
        return k
