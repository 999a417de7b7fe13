"""A tracker that writes the rows as CSV, in the run's folder."""

import csv
from dataclasses import dataclass

from nocap.options.tracker import Tracker, TrackerSession


class Session(TrackerSession):
    def __init__(self, path, columns):
        self.url_or_hint, self.path, self.columns = str(path), path, columns
        self.write(columns, mode="w")

    def write(self, values, mode="a"):
        with self.path.open(mode, newline="") as file:
            csv.writer(file).writerow(values)

    def log(self, row):
        self.write([row.get(column) for column in self.columns])


@dataclass(kw_only=True)
class CsvRows(Tracker):
    kind: str = "csv_rows"
    columns: list[str]

    def open(self, facts):
        return Session(facts.run_dir / "rows.csv", self.columns)
