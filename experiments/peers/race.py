"""The race against the challenge's loop, nanoGPT and nanochat: one interleaved bench a shape and
session.

    export NOCAP_TEST=… NANOGPT=… NANOCHAT=…  # folders of the peers' checkouts
    experiments/peers/race.py SHAPE --all     # every setting once: SHAPE.json beside this file
    experiments/peers/race.py SHAPE --session K  # the best forms, the K-th time: SHAPE.K.json
    experiments/peers/race.py --tell          # README.md's table, from the sessions that are there

nocap's default is that of a run long enough for compilation to pay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peer_arm import PeerArm

from nocap.judge.cautious_interval import of_pairs
from nocap.judge.interval import Estimate
from nocap.measure.bench import carry_out
from nocap.measure.bench_arms import compose_arm, compose_arms
from nocap.measure.bench_json import written
from nocap.measure.bench_result import ArmStatus, Bench
from nocap.measure.bench_table import render_bench
from nocap.measure.timed_arm import TimedArm
from nocap.store.record_files import write_json

HERE = Path(__file__).resolve().parent
COMMON = "tracker=none trainer.device=cpu trainer.threads=1 trainer.steps=100000"
SHAPES = {
    "nano": "model=nano tokenizer=bytes trainer.micro_batch=8 trainer.batch_tokens=1024",
    "tiny": "model=tiny tokenizer=bytes trainer.micro_batch=4 trainer.batch_tokens=1024",
    "6x256": "model=tiny model.n_layer=6 model.d_model=256 tokenizer=bytes trainer.micro_batch=4 "
    "trainer.batch_tokens=1024",
    "tiny_gpt2": "model=tiny tokenizer=gpt2 trainer.micro_batch=2 trainer.batch_tokens=512",
    "d12_gpt2": "model=d12 model.seq_len=512 tokenizer=gpt2 trainer.micro_batch=1 "
    "trainer.batch_tokens=512",
}
OWN = ("fp32 off", "fp32 regional", "fp32 full", "bf16 regional", "bf16 full")  # beside the default
PEERS = ("nocap_test", "nanogpt", "nanochat")
ALL = ("fp32 off", "fp32 full", "bf16 off", "bf16 full")  # of each peer
# With --all, beyond nano only what may be a peer's best, where heads are narrow fp32: a compiled
# arm costs half a minute before it is timed.
FEWER: dict[str, dict[str, tuple[str, ...]]] = {
    "nano": {"own": OWN[1:], **dict.fromkeys(PEERS, ALL)},
    "tiny": {
        "own": OWN,
        "nocap_test": ALL[1::2],
        "nanogpt": (*ALL[:2], ALL[3]),
        "nanochat": ALL[1::2],
    },
    "6x256": {"own": OWN[2:], "nocap_test": ALL[3:], "nanogpt": ALL[1::2], "nanochat": ALL[3:]},
    "tiny_gpt2": {"own": OWN[2:], "nocap_test": ALL[3:], "nanogpt": ALL[1::2], "nanochat": ALL[3:]},
    "d12_gpt2": {"own": OWN[3:], "nocap_test": ALL[3:], "nanogpt": ALL[3:], "nanochat": ALL[3:]},
}
# What was the best, or within its interval, when every setting raced; of nocap's what its default
# is not.
BEST: dict[str, dict[str, tuple[str, ...]]] = {
    shape: {"own": (f"{precision} regional",), **dict.fromkeys(PEERS, (f"{precision} full",))}
    for shape, precision in {**dict.fromkeys(SHAPES, "bf16"), "nano": "fp32"}.items()
}
BEST["d12_gpt2"]["own"] = ("bf16 full",)
BEST["tiny"]["nanochat"] = ("fp32 full", "bf16 full")
MARK = "<!-- the table -->"


def race(
    base: Sequence[str], settings_of: Mapping[str, Sequence[str]], file: Path, rounds: int
) -> int:
    """Time nocap's arms and the peers', each of a peer's in a setting of its own, and write the
    result, which the file has after each round. Return 1 where an arm has failed."""

    def keep(result: Bench) -> None:
        write_json(file, {"words": list(base), **written(result)})

    print(f"{' '.join(base)}\nload before: {os.getloadavg()}")
    result = carry_out(arms_of(base, settings_of), seconds=math.inf, rounds=rounds, keep=keep)
    print(render_bench(result))
    own_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    compilers_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    print(f"load after: {os.getloadavg()}; CPU {own_s:.0f} s, and {compilers_s:.0f} s of compilers")
    return int(any(arm.status is ArmStatus.failed for arm in result.arms))


def arms_of(base: Sequence[str], settings_of: Mapping[str, Sequence[str]]) -> list[TimedArm]:
    """Return nocap's default, nocap's other settings, and each peer's."""
    own = ["", *(overrides(setting) for setting in settings_of["own"])]
    arms = [TimedArm(label, run) for label, run in compose_arms(base, own).items()]
    for peer, settings in settings_of.items():
        for setting in settings:
            if peer != "own":
                words = overrides(setting)
                arms.append(PeerArm(f"{peer}.py {words}", compose_arm(base, words).run, peer))
    return arms


def overrides(setting: str) -> str:
    """Return `fp32 off` as overrides."""
    precision, compiled = setting.split()
    return f"trainer.precision={precision} trainer.compile={compiled}"


# --- the table ------------------------------------------------------------------------------------


def table() -> str:
    head = (
        "| shape | sessions | peer | its best setting | nocap's default against it | nocap's best "
        "against it | nocap's default | default against nocap's best | A/A control |"
    )
    lines = [head, "|---" * 9 + "|"]
    for shape in SHAPES:
        if sessions := [
            json.loads(path.read_text()) for path in sorted(HERE.glob(f"{shape}.?.json"))
        ]:
            lines += rows(shape, sessions)
    return "\n".join(lines)


def rows(shape: str, sessions: list[dict[str, Any]]) -> list[str]:
    """The arms are the same in each session, and the first is the default."""
    first = sessions[0]["arms"]
    names, arms = [short(arm) for arm in first], range(len(first))
    own = [i for i in arms if "external" not in first[i]["config"]]
    speed = [
        float(np.mean([session["arms"][i]["tokens_per_s"] for session in sessions])) for i in arms
    ]
    control = told([speed_over(session["control"], session["arms"][0]) for session in sessions])
    best = max(own, key=lambda i: speed[i])
    lines = []
    for peer in PEERS:
        rival = max(
            (i for i in arms if first[i]["config"].get("external", {}).get("file") == f"{peer}.py"),
            key=lambda i: speed[i],
        )
        ratios = [over(sessions, *pair) for pair in ((0, rival), (best, rival), (0, best))]
        cells = [shape, str(len(sessions)), model_of(first[rival]), names[rival]]
        cells += [*ratios[:2], names[0], ratios[2], control]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def model_of(arm: dict[str, Any]) -> str:
    """Return the model that a peer's step says it trains; sessions before 2026-11-28 have it beside
    the facts."""
    settings = arm.get("settings") or arm["config"]["external"]["settings"]
    return str(settings["model"])


def over(sessions: list[dict[str, Any]], i: int, j: int) -> str:
    """Tokens/s of one arm over another's: with three sessions the interval is over sessions."""
    if i == j:
        return "the same"
    return told([speed_over(session["arms"][i], session["arms"][j]) for session in sessions])


def told(each: list[Estimate]) -> str:
    e = of_pairs([math.log(e.mid) for e in each]).exp() if len(each) > 2 else each[0]
    return f"{e.mid:.2f}× [{e.low:.2f}, {e.high:.2f}]"


def speed_over(arm: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Of two arms of a bench: tokens/s of one over the other's, round by round."""
    arm_log_s, other_log_s = (
        np.log(np.mean(timed["seconds_per_token"], axis=1)) for timed in (arm, other)
    )
    return of_pairs(other_log_s - arm_log_s).exp()


def short(arm: dict[str, Any]) -> str:
    """Precision and compilation."""
    t = (
        arm["config"]["external"]["request"]
        if "external" in arm["config"]
        else arm["config"]["trainer"]
    )
    return f"{t['precision']}, {'eager' if t['compile'] == 'off' else 'compiled'}"


def tell() -> int:
    readme = HERE / "README.md"
    before, _, after = readme.read_text().split(MARK)
    readme.write_text(MARK.join([before, f"\n{table()}\n", after]))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", nargs="?", choices=SHAPES)
    parser.add_argument(
        "--rounds", type=int, default=12, metavar="N", help="of the bench (default: 12)"
    )
    parser.add_argument("--all", action="store_true", help="every setting")
    parser.add_argument(
        "--session", type=int, metavar="K", help="the best settings, for the K-th time"
    )
    parser.add_argument("--tell", action="store_true", help="write the table")
    options = parser.parse_args()
    shape, session = options.shape, options.session
    if (bool(shape), bool(options.all) + bool(session)) != (
        (not options.tell),
        int(not options.tell),
    ):
        parser.error("give a shape with --all or --session, or --tell alone")
    if options.tell:
        return tell()
    settings, name = (FEWER, shape) if options.all else (BEST, f"{shape}.{session}")
    base = [*COMMON.split(), *SHAPES[shape].split()]
    return race(base, settings[shape], HERE / f"{name}.json", options.rounds)


if __name__ == "__main__":
    sys.exit(main())
