"""The table of Keras's CSVLogger: a row an epoch, from 0. It has no step, and its `loss` is the
mean over the epoch that trained."""

from __future__ import annotations

from nocap.sources.formats import csv
from nocap.sources.log_reading import Sample

PATTERN = csv.PATTERN
read = csv.read


def recognises(sample: Sample) -> bool:
    names = csv.names_of(sample)
    return names[:1] == ["epoch"] and {"loss", "val_loss"} <= {*names} and "step" not in names
