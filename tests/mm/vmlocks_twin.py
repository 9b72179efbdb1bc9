"""Locks of FreeBSD as objects: CPUs follow scripts, one lock operation after another, the earliest clock first.

A script is a list of ("think", ns), ("hold", lock, ns), ("write", lock), ("read", lock), ("release", lock).
"""

NEVER = 2**63 - 1


class Lock:
    def __init__(self):
        self.readers, self.writer, self.free_at = set(), None, 0
        self.queue = []  # (cpu, operation, since)

    def admits(self, what):
        if self.writer is not None:
            return False
        return not self.readers or what == "read"


class Twin:
    def __init__(self, scripts, line_of, handoff, node_of, remote):
        self.scripts, self.line_of, self.handoff, self.node_of, self.remote = scripts, line_of, handoff, node_of, remote
        self.locks = {lock: Lock() for lock in line_of}
        self.line_owner = {}
        self.clock = [0] * len(scripts)
        self.at = [0] * len(scripts)
        self.parked = set()
        self.waits, self.holds = [], {lock: 0 for lock in line_of}

    def run(self):
        while True:
            ready = [c for c in range(len(self.scripts)) if c not in self.parked and self.at[c] < len(self.scripts[c])]
            if not ready:
                assert not self.parked
                return
            cpu = min(ready, key=lambda c: (self.clock[c], c))
            operation = self.scripts[cpu][self.at[cpu]]
            self.at[cpu] += 1
            if operation[0] == "think":
                self.clock[cpu] += operation[1]
            elif operation[0] == "release":
                self.release(cpu, operation[1])
            else:
                self.ask(cpu, operation)

    def travel(self, cpu, lock):
        line = self.line_of[lock]
        owner = self.line_owner.get(line, cpu)
        self.line_owner[line] = cpu
        if owner == cpu:
            return 0
        return self.handoff if self.node_of[owner] == self.node_of[cpu] else self.handoff + self.remote

    def ask(self, cpu, operation):
        lock = self.locks[operation[1]]
        if lock.queue or not lock.admits(operation[0]):
            lock.queue.append((cpu, operation, self.clock[cpu]))
            self.parked.add(cpu)
        else:
            self.give(cpu, operation, self.clock[cpu], self.clock[cpu])

    def give(self, cpu, operation, since, now):
        what, name = operation[:2]
        lock = self.locks[name]
        begin = max(now, lock.free_at)
        begin += self.travel(cpu, name)
        self.waits.append((name, begin - since))
        lock.free_at = self.clock[cpu] = begin
        if what == "hold":
            lock.free_at = self.clock[cpu] = begin + operation[2]
            self.holds[name] += operation[2]
            return
        self.holds[name] -= begin
        if what == "read":
            lock.readers.add(cpu)
        else:
            lock.writer = cpu

    def release(self, cpu, name):
        lock = self.locks[name]
        if cpu in lock.readers:
            ns = self.travel(cpu, name)
            self.waits.append((name, ns))
            self.clock[cpu] += ns
            lock.readers.remove(cpu)
        else:
            lock.writer = None
        now = self.clock[cpu]
        self.holds[name] += now
        if not lock.readers:
            lock.free_at = max(lock.free_at, now)
        while lock.queue and lock.admits(lock.queue[0][1][0]):
            other, operation, since = lock.queue.pop(0)
            self.parked.remove(other)
            self.give(other, operation, since, now)
