"""An SQLite load: readings of many sensors inserted in batches, indexed, queried, and joined. Deterministic.

What it touches is SQLite's page cache, its sorter, and Python's own small objects, not large arrays.
"""

import sqlite3
import tempfile
from pathlib import Path

SENSORS = 500
READINGS = 150_000


def readings() -> "zip[tuple[int, int, float]]":
    """(sensor, second, value) rows in the order they would arrive, from a small congruential generator."""
    state, sensors, seconds, values = 2004, [], [], []
    for number in range(READINGS):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        sensors.append(state % SENSORS)
        seconds.append(number // 50)
        values.append((state >> 8) / 2**15)
    return zip(sensors, seconds, values, strict=True)


def main() -> None:
    """Load, index, query; print a line that is the same on every run."""
    with tempfile.TemporaryDirectory(prefix="sqlite-load-") as folder:
        db = sqlite3.connect(Path(folder) / "readings.db")
        db.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA cache_size = -32768;
            CREATE TABLE sensor (id INTEGER PRIMARY KEY, place TEXT);
            CREATE TABLE reading (sensor INTEGER, second INTEGER, value REAL);
            """
        )
        db.executemany("INSERT INTO sensor VALUES (?, ?)", ((n, f"hall {n % 7}, rack {n}") for n in range(SENSORS)))
        db.executemany("INSERT INTO reading VALUES (?, ?, ?)", readings())
        db.commit()
        db.execute("CREATE INDEX reading_by_sensor ON reading (sensor, second)")
        db.commit()
        halls = db.execute(
            """
            SELECT substr(place, 1, 6) AS hall, count(*), round(avg(value), 1)
            FROM reading JOIN sensor ON sensor.id = reading.sensor
            GROUP BY hall ORDER BY hall
            """
        ).fetchall()
        latest = db.execute("SELECT sensor, max(second) FROM reading GROUP BY sensor").fetchall()
        db.close()
    print(f"{READINGS} readings of {len(latest)} sensors in {len(halls)} halls; {halls[0][0]}: {halls[0][1:]}")


if __name__ == "__main__":
    main()
