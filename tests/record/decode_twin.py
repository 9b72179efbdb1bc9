"""The naive twin of the decoding kernel: one record at a time, with struct, no code of `src`."""

import struct

SW, TP = 0x10000 | 1 | 2 | 4 | 8 | 128, 0x10000 | 2 | 4 | 128 | 1024
CHAIN = 32

# identifier: (meaning, sample_type, byte offsets of fields in the raw data)
EVENTS = {
    11: ("fault", SW, ()),
    12: ("fault", SW | CHAIN, ()),
    21: ("user", TP, (8, 16, 24)),
    22: ("kernel", TP | CHAIN, (8, 16, 24)),
    31: ("munmap", TP, (16, 24)),
    32: ("mremap", TP, (16, 24, 32, 40)),
    33: ("mremap_exit", TP, (16,)),
}


def decode(chunk: bytes) -> tuple[list[tuple], int, int]:
    """Rows as tuples, records skipped, records lost."""
    rows, skipped, lost, at = [], 0, 0, 0
    while at < len(chunk):
        if len(chunk) - at < 8:
            skipped += 1
            break
        kind, misc, size = struct.unpack_from("<IHH", chunk, at)
        if size == 0 or size % 8 or at + size > len(chunk):
            skipped += 1
            break
        record = chunk[at : at + size]
        word = at // 4
        at += size
        try:
            if kind == 2:
                lost += struct.unpack_from("<Q", record, 16)[0]
            elif kind == 13:
                lost += struct.unpack_from("<Q", record, 8)[0]
            elif kind == 9:
                row = sample(record)
                if row:
                    rows.append(row)
            else:
                rows.append(side_band(kind, misc, record, word))
        except (struct.error, KeyError, IndexError):
            skipped += 1
    return rows, skipped, lost


def side_band(kind: int, misc: int, record: bytes, word: int) -> tuple:
    names = {3: "comm", 4: "exit", 7: "fork", 10: "mmap", 14: "switch"}
    name = names[kind]
    body, trailer = record[8:-32], record[-32:]
    if len(record) < 40:
        raise IndexError
    pid, tid, time, cpu = struct.unpack_from("<iiqh", trailer)
    if name == "switch":
        return (name, pid, tid, time, cpu, 0 if not misc & 0x2000 else 2 if misc & 0x4000 else 1)
    if name in ("fork", "exit"):
        pid, ppid, tid, ptid = struct.unpack_from("<iIiI", body)
        struct.unpack_from("<Q", body, 16)
        return (name, pid, tid, time, cpu, ppid, ptid)
    pid, tid = struct.unpack_from("<ii", body)
    body[(71 if name == "mmap" else 15)]  # as long as it must be
    return (name, pid, tid, time, cpu, word, misc)


def sample(record: bytes) -> tuple | None:
    at = 8

    def take(form: str) -> tuple:
        nonlocal at
        values = struct.unpack_from("<" + form, record, at)
        at += struct.calcsize("<" + form)
        return values

    meaning, what, offsets = EVENTS[take("Q")[0]]
    ip = take("Q")[0] if what & 1 else 0
    pid, tid, time = take("iiq")
    address = take("Q")[0] if what & 8 else 0
    cpu = take("hhi")[0]
    chain = None
    if what & CHAIN:
        nr = take("Q")[0]
        if nr > (len(record) - at) // 8:
            raise IndexError
        chain = take(f"{nr}Q")
    if meaning == "fault":
        return ("touch", pid, tid, time, cpu, address, ip, 32, chain) if address < 1 << 63 else None
    size = take("I")[0] // 4 * 4
    raw = record[at : at + size]
    if len(raw) < size:
        raise IndexError
    fields = [struct.unpack_from("<Q", raw, offset)[0] for offset in offsets]
    if meaning not in ("user", "kernel"):
        return (meaning, pid, tid, time, cpu, *fields)
    address, ip, code = fields
    kind = (8 if code & 1 else 0) | (1 if code & 2 else 0) | (2 if code & 16 else 0) | (4 if meaning == "kernel" else 0)
    return ("touch", pid, tid, time, cpu, address, ip, kind, chain) if address < 1 << 63 else None
