"""A fault in the most obvious Python: an address space is a dict from page to what is mapped there.

It follows what semantics say of Linux 6.18, one touch after another in a given order, and knows nothing of time, CPUs,
free lists or page tables. A program is a list of steps; `Twin(...).run(steps)` counts faults by kind.
"""

from dataclasses import dataclass, field, replace

REGION = 512
WRITE, PROTECTION, RACED, RECORDED = 1, 8, 64, 128
ANON, WRITABLE, SHARED, STACK, ADVISED, NOHUGE, NORESERVE, SHMEM = 1, 2, 4, 8, 16, 32, 64, 128


@dataclass
class Folio:
    order: int
    users: set = field(default_factory=set)  # (space, page) of each entry that maps it


@dataclass
class Entry:
    what: str  # zero, anon, file, shmem
    writable: bool = False
    folio: Folio | None = None
    touched: bool = False
    written: bool = False
    near: bool = False  # the recording kernel would have mapped it here, too
    fresh: bool = False  # its own touch faulted last


@dataclass
class Space:
    pages: dict = field(default_factory=dict)
    whole: dict = field(default_factory=dict)  # region -> "zero" or "huge": one entry maps all of it

    def is_empty(self, first, nr):
        return not any(page in self.pages for page in range(first, first + nr))


class Twin:
    """`vmas`: (start, end, flags) a mapping. Policy: orders of plain and advised mappings, windows, populate."""

    def __init__(self, vmas, *, plain=(), advised=(), window=16, recorded_window=16, populate=False):
        self.vmas, self.plain, self.advised = vmas, set(plain), set(advised)
        self.window, self.recorded_window, self.populate = window, recorded_window, populate
        self.spaces = {0: Space()}
        self.faults, self.mapped, self.peak, self.untouched, self.copied = {}, 0, 0, 0, 0

    def run(self, steps):
        for step, *arguments in steps:
            getattr(self, step)(*arguments)
        return {kind: nr for kind, nr in self.faults.items() if nr}

    # -- steps

    def touch(self, mm, vma, page, kind):
        space, (start, end, flags) = self.spaces[mm], self.vmas[vma]
        entry = space.pages.get(page)
        if entry is not None:
            reason = self.reason(entry, kind, flags)
            if reason is None and (not kind & RECORDED or self.is_new_luck(entry, kind)):
                entry.fresh = False
                self.use(entry, kind)
                return
            if reason is None:
                self.drop(space, page)
        if entry is None or reason is None:
            reason = self.first_reason(kind, flags)
        reason = getattr(self, reason)(space, page, kind, (start, end, flags)) or reason
        self.faults[reason] = self.faults.get(reason, 0) + 1
        space.pages[page].fresh = True
        self.use(space.pages[page], kind)

    def unmap(self, mm, start, end):
        for page in range(start, end):
            if page in self.spaces[mm].pages:
                self.drop(self.spaces[mm], page)

    def move(self, mm, start, end, to):
        space = self.spaces[mm]
        for page in range(start, end):
            if page in space.pages:
                target = to + page - start
                entry = space.pages[target] = space.pages.pop(page)
                for where in (page, target):
                    space.whole.pop(where // REGION, None)
                if entry.folio:
                    entry.folio.users.remove((id(space), page))
                    entry.folio.users.add((id(space), target))

    def map(self, mm, vma):
        start, end, _ = self.vmas[vma]
        if self.populate:
            self.fill(mm, vma, start, end, near=False)

    def populate_range(self, mm, vma, start, end):
        self.fill(mm, vma, start, end, near=True)

    def fork(self, mm, child):
        old, new = self.spaces[mm], Space()
        self.spaces[child] = new
        new.whole = dict(old.whole)
        for page, entry in old.pages.items():
            if entry.folio:
                entry.writable = False
                entry.folio.users.add((id(new), page))
            new.pages[page] = replace(entry)

    def exit(self, mm):
        for page in list(self.spaces[mm].pages):
            self.drop(self.spaces[mm], page)

    # -- what a touch of a mapped page needs

    def reason(self, entry, kind, flags):
        if kind & RACED:
            return "spurious" if entry.fresh or entry.near else None
        if not kind & WRITE:
            return None
        if entry.what == "zero":
            return "zero_fill"
        if entry.what == "anon" and not entry.writable:
            return "cow"
        if entry.what == "file" and not entry.writable:
            return "reuse" if flags & SHARED else "cow"
        if kind & PROTECTION and kind & RECORDED and (entry.written or entry.what != "anon"):
            return "reuse"
        return None

    def is_new_luck(self, entry, kind):
        """A recorded touch faulted. Here it need not, if the page is mapped as the recording kernel never had it."""
        if entry.near:
            return False
        return bool(kind & RACED) or not entry.touched or (kind & WRITE and kind & PROTECTION)

    def first_reason(self, kind, flags):
        if flags & SHMEM:
            return "shared"
        if not flags & ANON:
            return "cow" if kind & WRITE and not flags & SHARED else "file"
        if not kind & WRITE:
            return "zero_page"
        return "cow" if kind & PROTECTION else "zero_fill"

    # -- what each fault does

    def zero_fill(self, space, page, kind, vma):
        region = page // REGION
        if page in space.pages:
            order = 9 if space.whole.get(region) == "zero" else 0
            for old in range(region * REGION, (region + 1) * REGION) if order else [page]:
                self.drop(space, old)
        else:
            order = self.order_for(space, page, vma)
        self.map_folio(space, page, order)
        return "huge" if order == 9 else "zero_fill"

    def zero_page(self, space, page, kind, vma):
        region = page // REGION
        if 9 in self.orders(vma) and self.fits(space, page, 9, vma):
            for other in range(region * REGION, (region + 1) * REGION):
                space.pages[other] = Entry("zero")
            space.whole[region] = "zero"
        else:
            space.pages[page] = Entry("zero")

    def cow(self, space, page, kind, vma):
        entry = space.pages.get(page)
        if entry and entry.folio and all(user == id(space) for user, _ in entry.folio.users):
            if space.whole.get(page // REGION) == "huge":
                for other in range(page // REGION * REGION, (page // REGION + 1) * REGION):
                    space.pages[other].writable = True
            entry.writable = True
            return "reuse"
        if entry:
            self.drop(space, page)
        self.map_folio(space, page, 0)
        self.copied += 1
        return None

    def reuse(self, space, page, kind, vma):
        space.pages[page].writable = True

    def file(self, space, page, kind, vma):
        if kind & WRITE:
            space.pages[page] = Entry("file", writable=True)
            return
        start, end, _ = vma
        near = self.around(start, end, page, self.recorded_window)
        for other in self.around(start, end, page, self.window):
            if other == page or other not in space.pages:
                space.pages[other] = Entry("file", near=other != page and other in near)

    def shared(self, space, page, kind, vma):
        space.pages[page] = Entry("shmem")

    def spurious(self, space, page, kind, vma):
        """Another thread was first."""

    # -- helpers

    def around(self, start, end, page, window):
        """semantics 7.5: p, v are the indices of the page in its page table and its mapping."""
        if window == 1:
            return range(page, page + 1)
        p, v = page % REGION, page - start
        first = max(p // window * window, p - min(p, v))
        last = min(first + window, REGION, p + (end - start) - v) - 1
        return range(page - p + first, page - p + last + 1)

    def orders(self, vma):
        flags = vma[2]
        if not flags & ANON or flags & (SHARED | NOHUGE):
            return set()
        return self.advised if flags & ADVISED else self.plain

    def fits(self, space, page, order, vma):
        first = page // 2**order * 2**order
        return vma[0] <= first and first + 2**order <= vma[1] and space.is_empty(first, 2**order)

    def order_for(self, space, page, vma):
        return max((order for order in self.orders(vma) if self.fits(space, page, order, vma)), default=0)

    def map_folio(self, space, page, order, near=range(0)):
        folio = Folio(order)
        first = page // 2**order * 2**order
        for other in range(first, first + 2**order):
            space.pages[other] = Entry("anon", True, folio, near=other in near)
            folio.users.add((id(space), other))
        if order == 9:
            space.whole[first // REGION] = "huge"
        self.mapped += 2**order
        self.peak = max(self.peak, self.mapped)

    def fill(self, mm, vma, start, end, near):
        space, flags = self.spaces[mm], self.vmas[vma][2]
        if not flags & ANON or not flags & WRITABLE or flags & (SHARED | STACK | NORESERVE | SHMEM):
            return
        for page in range(start, end):
            if page not in space.pages:
                order = self.order_for(space, page, self.vmas[vma])
                self.map_folio(space, page, order, range(start, end) if near else range(0))

    def drop(self, space, page):
        entry = space.pages.pop(page)
        space.whole.pop(page // REGION, None)
        if entry.folio:
            self.untouched += not entry.touched
            entry.folio.users.remove((id(space), page))
            if not entry.folio.users:
                self.mapped -= 2**entry.folio.order

    def use(self, entry, kind):
        entry.touched = True
        if kind & WRITE:
            entry.written = True
