"""The naive twin of the decoding kernel: one record at a time, with struct, no code of `src`."""

import struct

SW, TP, CHAIN = 1 | 2 | 4 | 8, 2 | 4 | 1024, 32  # what all samples of a ring hold, with or without call chains
TP_ALONE = 4 | 1024  # the thread is in the tracepoint's raw data only
CPU = 5

# number of the tracepoint: (meaning, byte offsets of fields in the raw data)
POINTS = {
    21: ("user", (8, 16, 24)),
    22: ("kernel", (8, 16, 24)),
    31: ("munmap", (16, 24)),
    32: ("mremap", (16, 24, 32, 40)),
    33: ("mremap_exit", (16,)),
}


def decode(chunk: bytes, holds: int) -> tuple[list[tuple], int, int]:
    """Rows as tuples, records skipped, records lost; `holds` is what samples of this ring hold."""
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
            if kind in (2, 13):
                (nr,) = struct.unpack_from("<Q", record, 16 if kind == 2 else 8)
                if nr >= 1 << 48:
                    raise IndexError
                lost += nr
            elif kind == 9:
                row = sample(record, holds)
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
    body, trailer = record[8:-16], record[-16:]
    if len(record) < 24:
        raise IndexError
    pid, tid, time = struct.unpack_from("<iiq", trailer)
    if name == "switch":
        return (name, pid, tid, time, CPU, 0 if not misc & 0x2000 else 2 if misc & 0x4000 else 1)
    if name in ("fork", "exit"):
        pid, ppid, tid, ptid = struct.unpack_from("<iIiI", body)
        struct.unpack_from("<Q", body, 16)
        return (name, pid, tid, time, CPU, ppid, ptid)
    pid, tid = struct.unpack_from("<ii", body)
    body[(71 if name == "mmap" else 15)]  # as long as it must be
    return (name, pid, tid, time, CPU, word, misc)


def sample(record: bytes, holds: int) -> tuple | None:
    at = 8

    def take(form: str) -> tuple:
        nonlocal at
        values = struct.unpack_from("<" + form, record, at)
        at += struct.calcsize("<" + form)
        return values

    ip = take("Q")[0] if holds & 1 else 0
    pid, tid = take("ii") if holds & 2 else (-2, 0)
    time = take("q")[0]
    address = take("Q")[0] if holds & 8 else 0
    chain = None
    if holds & CHAIN:
        nr = take("Q")[0]
        if nr > (len(record) - at) // 8:
            raise IndexError
        chain = take(f"{nr}Q")
    if not holds & 1024:
        return ("touch", pid, tid, time, CPU, address, ip, 32, chain) if address < 1 << 63 else None
    size = take("I")[0] // 4 * 4
    raw = record[at : at + size]
    if len(raw) < size:
        raise IndexError
    if len(raw) < 8:
        raise IndexError
    tid = tid if holds & 2 else struct.unpack_from("<i", raw, 4)[0]
    meaning, offsets = POINTS[struct.unpack_from("<H", raw)[0]]
    fields = [struct.unpack_from("<Q", raw, offset)[0] for offset in offsets]
    if meaning not in ("user", "kernel"):
        return (meaning, pid, tid, time, CPU, *fields)
    address, ip, code = fields
    kind = (8 if code & 1 else 0) | (1 if code & 2 else 0) | (2 if code & 16 else 0) | (4 if meaning == "kernel" else 0)
    return ("touch", pid, tid, time, CPU, address, ip, kind, chain) if address < 1 << 63 else None
