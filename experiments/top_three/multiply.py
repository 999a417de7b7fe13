"""Whether the gains of the three changes multiply: the speed of all together over the product of
each alone.

python experiments/top_three/multiply.py  # from the sessions in log.jsonl; trains and times nothing
"""

from __future__ import annotations

import math
from pathlib import Path

from nocap.judge.cautious_interval import of_pairs
from nocap.study.log import FILE, SessionLine, read_log

HERE = Path(__file__).resolve().parent
ALONE = ("flash", "gqa", "gelu3x")
TOGETHER = "together"
BASE = "mha"


def log_gain(session: SessionLine, arm: str) -> float:
    """Return the logarithm of an arm's tokens/s over the baseline's."""
    speed = session.measured[arm]
    base = session.measured[BASE]
    if not speed or not base:
        raise ValueError(f"session {session.number} has no speed of {arm} or of {BASE}")
    return math.log(speed / base)


def main() -> None:
    """Print each gain, and all together over their product, with 95% intervals over the
    sessions."""
    log = read_log(HERE / FILE)
    for machine in dict.fromkeys(line.machine for line in log.lines):
        sessions = log.of(SessionLine, machine=machine, place="bench")
        if not sessions:
            continue
        print(f"machine {machine}, {len(sessions)} sessions")
        for arm in (*ALONE, TOGETHER):
            tell(f"{arm} over {BASE}", [log_gain(session, arm) for session in sessions])
        beyond = []
        for session in sessions:
            product = sum(log_gain(session, arm) for arm in ALONE)
            beyond.append(log_gain(session, TOGETHER) - product)
        tell(f"{TOGETHER} over the product of the others", beyond)


def tell(name: str, logs: list[float]) -> None:
    """Print a ratio with its interval."""
    ratio = of_pairs(logs).exp()
    print(f"{name}: {ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")


if __name__ == "__main__":
    main()
