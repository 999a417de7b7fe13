"""The places of sessions: a kind of measurement, and the shape that the arms have there.

    place      kind       what is measured                            shape   in a study's log
    bench      steps      speed, memory and work of a step            bench   tokens_per_s
    pace       steps      the same                                    train   tokens_per_s
    rounds     rounds     seconds a token, round by round (`--time`)  train
    parts      parts      a profile: each part of a step              bench   step_ms
    curve      lengths    attention at several lengths                curve   exponent
    decoding   decoding   text, token by token                        decode  decode_tokens_per_s

The kind says what the worker does (`KINDS` in `worker`), which figures an arm then has (`figures`),
and which metrics they are (`made_by` in `nocap.metrics`). The shape is a key of a scale in a
`study.yaml`.

A claim about step_ms, for example: the metric is made by steps, and the first place of that kind is
bench. So a study times both arms at the shape that its scale has under `bench`. A session leaves
`sessions/bench-1-KEY.json`, with `"kind": "steps", "place": "bench"` and the `StepFigures` of each
arm; the study's log keeps their tokens_per_s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nocap.metrics import Metric
from nocap.sessions.figures import (
    DecodingFigures,
    Figures,
    LengthFigures,
    PartFigures,
    RoundFigures,
    StepFigures,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A row of the table above."""

    kind: str
    figures: type[Figures]  # of an arm
    shape: str  # the key of a scale
    logged: str = ""  # the figure that a study's log keeps; "": none

    @property
    def as_trained(self) -> bool:
        """Say whether arms have the shape there that they are trained with."""
        return self.shape == TRAIN


# the shape that arms are trained at; of a metric, that training makes it and no session does
TRAIN = "train"
# the places
BENCH = "bench"
PACE = "pace"
ROUNDS = "rounds"
PARTS = "parts"
CURVE = "curve"
DECODING = "decoding"
# the engines of decoding, as a study names them
NO_CACHE = "no cache"
CACHE = "cache"
COMPILED_CACHE = "cache, compiled"
ENGINES = (NO_CACHE, CACHE, COMPILED_CACHE)
PLACES: Mapping[str, Place] = {
    BENCH: Place(kind="steps", figures=StepFigures, shape="bench", logged="tokens_per_s"),
    PACE: Place(kind="steps", figures=StepFigures, shape=TRAIN, logged="tokens_per_s"),
    ROUNDS: Place(kind="rounds", figures=RoundFigures, shape=TRAIN),
    PARTS: Place(kind="parts", figures=PartFigures, shape="bench", logged="step_ms"),
    CURVE: Place(kind="lengths", figures=LengthFigures, shape="curve", logged="exponent"),
    DECODING: Place(
        kind="decoding", figures=DecodingFigures, shape="decode", logged="decode_tokens_per_s"
    ),
}


def place_of(metric: Metric) -> str:
    """Return where a claim's metric is measured: `train`, or the first place of sessions of its
    kind."""
    if metric.made_by == TRAIN:
        return TRAIN
    return next(name for name, place in PLACES.items() if place.kind == metric.made_by)


def scale_key_of(metric: Metric) -> str:
    """Return the key of a scale that a claim's metric needs: the shape of its place, or `train`."""
    place = place_of(metric)
    return PLACES[place].shape if place in PLACES else place
