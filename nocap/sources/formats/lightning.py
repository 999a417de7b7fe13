"""The table of Lightning's CSVLogger, `version_N/metrics.csv`: validations are rows of their own.
`step` counts optimizer steps from 0, so after 200 of them it is 199. Beside it `hparams.yaml` has
what the module saved."""

from __future__ import annotations

from nocap.sources.formats import csv
from nocap.sources.log_reading import Sample

PATTERN = csv.PATTERN
read = csv.read


def recognises(sample: Sample) -> bool:
    names = csv.names_of(sample)
    is_own = names == sorted(names) and "iter_time" not in names  # which litgpt adds
    return is_own and {"epoch", "step"} <= {*names} and "\r\n" in sample.text
