"""A tracker that writes into SQLite, in the run's folder: `rows` has step, name and value,
`summary` name and value."""

import json
import sqlite3
from dataclasses import dataclass

from nocap.config.keys import flat, require
from nocap.options.tracker import Tracker, TrackerSession


class Session(TrackerSession):
    def __init__(self, path):
        self.url_or_hint = f"sqlite3 {path}"
        self.database = sqlite3.connect(path)
        with self.database:  # one transaction: a killed run leaves none half written
            # after a resume, the rows that stand come again
            self.database.execute("DROP TABLE IF EXISTS rows")
            self.database.execute(
                "CREATE TABLE rows (step INTEGER, name TEXT, value, PRIMARY KEY (step, name))"
            )
            self.database.execute(
                "CREATE TABLE IF NOT EXISTS summary (name TEXT PRIMARY KEY, value)"
            )

    def log(self, row):
        values = [(row["step"], name, value) for name, value in row.items() if name != "step"]
        with self.database:
            self.database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)

    def finish(self, *, summary, status):
        values = [
            ("status", status),
            *((name, json.dumps(value)) for name, value in flat(summary, "/") if name != "status"),
        ]
        with self.database:
            self.database.executemany("INSERT OR REPLACE INTO summary VALUES (?, ?)", values)
        self.database.close()


@dataclass(kw_only=True)
class SqliteRows(Tracker):
    kind: str = "sqlite_rows"
    file: str  # a name in the run's folder

    def __post_init__(self):
        require(
            self.file not in ("", ".", "..") and "/" not in self.file,
            "tracker.file",
            "be a file's name",
            self.file,
        )

    def open(self, facts):
        return Session(facts.run_dir / self.file)
