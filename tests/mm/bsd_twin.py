"""Faults of NetBSD and FreeBSD in the most obvious Python: the twin of Linux with other neighbours, forks and reads."""

from dataclasses import replace

from twin import ANON, REGION, SHARED, SHMEM, WRITE, Entry, Space, Twin


class BsdTwin(Twin):
    """`rule`: netbsd or freebsd; `behind`, `ahead`: pages of the window, for mappings without advice."""

    def __init__(self, vmas, *, rule, behind, ahead, fills_shared=False, after_copies=False, fork_maps=True, **other):
        super().__init__(vmas, window=1, **other)
        self.rule, self.behind, self.ahead = rule, behind, ahead
        self.fills_shared, self.after_copies, self.fork_maps = fills_shared, after_copies, fork_maps
        self.tables = {0: set()}  # mm -> regions that have a page table
        self.mm = 0

    # -- steps

    def touch(self, mm, vma, page, kind):
        self.mm = mm
        self.tables[mm].add(page // REGION)
        super().touch(mm, vma, page, kind)

    def move(self, mm, start, end, to):
        self.tables[mm] |= {
            (to + page - start) // REGION for page in range(start, end) if page in self.spaces[mm].pages
        }
        super().move(mm, start, end, to)

    def fill(self, mm, vma, start, end, near):
        before = set(self.spaces[mm].pages)
        super().fill(mm, vma, start, end, near)
        if set(self.spaces[mm].pages) - before or before & set(range(start, end)):
            self.tables[mm] |= {page // REGION for page in range(start, end)} if self.may_fill(vma) else set()

    def may_fill(self, vma):
        flags = self.vmas[vma][2]
        return flags & ANON and flags & 2 and not flags & (SHARED | 8 | 64 | SHMEM)

    def fork(self, mm, child):
        self.tables[child] = {page // REGION for page in self.spaces[mm].pages}
        if self.fork_maps:
            super().fork(mm, child)
            return
        old, new = self.spaces[mm], Space()
        self.spaces[child] = new
        for page, entry in old.pages.items():
            if entry.what == "file":
                continue
            if entry.folio:
                entry.writable = False
                entry.folio.users.add((id(new), page))
            new.pages[page] = replace(entry)
            new.pages[page].unmapped = True

    # -- what a touch needs, and what a fault does

    def reason(self, entry, kind, flags):
        if getattr(entry, "unmapped", False):
            return "cow" if kind & WRITE and not flags & SHMEM else "resident"
        return super().reason(entry, kind, flags)

    def first_reason(self, kind, flags):
        reason = super().first_reason(kind, flags)
        return "zero_fill" if reason == "zero_page" else reason

    def zero_fill(self, space, page, kind, vma):
        out = super().zero_fill(space, page, kind, vma)
        self.neighbours(space, page, vma, "zero_fill")
        return out

    def cow(self, space, page, kind, vma):
        entry = space.pages.get(page)
        if entry and getattr(entry, "unmapped", False) and self.is_last_user(space, entry):
            self.resident(space, page, kind, vma)
            return "resident"
        out = super().cow(space, page, kind, vma)
        self.neighbours(space, page, vma, out or "cow")
        return out

    def reuse(self, space, page, kind, vma):
        super().reuse(space, page, kind, vma)
        self.neighbours(space, page, vma, "reuse")

    def file(self, space, page, kind, vma):
        space.pages[page] = Entry("file", writable=bool(kind & WRITE))
        self.neighbours(space, page, vma, "file")

    def shared(self, space, page, kind, vma):
        super().shared(space, page, kind, vma)
        self.neighbours(space, page, vma, "shared")

    def resident(self, space, page, kind, vma):
        self.map_it(space, space.pages[page])
        self.neighbours(space, page, vma, "resident")

    def map_it(self, space, entry):
        entry.unmapped = False
        entry.writable = bool(entry.folio) and self.is_last_user(space, entry)

    def is_last_user(self, space, entry):
        return bool(entry.folio) and {user for user, _ in entry.folio.users} == {id(space)}

    # -- neighbours

    def neighbours(self, space, page, vma, reason):
        getattr(self, f"{self.rule}_neighbours")(space, page, vma, reason)

    def netbsd_neighbours(self, space, page, vma, reason):
        start, end, flags = vma
        for other in range(max(start, page - self.behind), min(end, page + self.ahead + 1)):
            entry = space.pages.get(other)
            if entry is not None:
                if getattr(entry, "unmapped", False):
                    self.map_it(space, entry)
            elif not flags & (ANON | SHMEM) and reason in ("file", "cow"):
                self.map_file(space, page, other, vma)
            elif flags & SHMEM and self.fills_shared and reason == "shared":
                space.pages[other] = Entry("shmem")

    def freebsd_neighbours(self, space, page, vma, reason):
        if reason not in ("file", "reuse", "resident") and not (reason == "cow" and self.after_copies):
            return
        start, end, flags = vma
        nearest_first = sorted(range(-self.behind, self.ahead + 1), key=lambda d: (abs(d), d))[1:]
        for other in (page + distance for distance in nearest_first):
            if not start <= other < end or other // REGION not in self.tables[self.mm]:
                continue
            entry = space.pages.get(other)
            if entry is None and flags & (ANON | SHMEM):
                return
            if entry is None:
                self.map_file(space, page, other, vma)
            elif getattr(entry, "unmapped", False):
                self.map_it(space, entry)

    def map_file(self, space, page, other, vma):
        start, end, _ = vma
        near = other in self.around(start, end, page, self.recorded_window)
        space.pages[other] = Entry("file", near=near)
