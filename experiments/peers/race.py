"""The race against the challenge's loop, nanoGPT and nanochat: one interleaved bench a shape.

    export NOCAP_TEST=… NANOGPT=… NANOCHAT=…                      # folders of the peers' checkouts python
    experiments/peers/race.py SHAPE [--rounds N]           # writes SHAPE.json beside this file python
    experiments/peers/race.py --tell                       # writes the table of README.md from the files that
    are there

Each peer races at its settings, compiled and eager, fp32 and bf16, those of FEWER where there are some; nocap
at its default and others.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np

from nocap import bench
from nocap.judge.interval import Estimate, of_pairs

HERE = Path(__file__).resolve().parent
COMMON = "tracker=none trainer.device=cpu trainer.threads=1"
SHAPES = {
    "nano": "model=nano tokenizer=bytes trainer.micro_batch=8 trainer.batch_tokens=1024",
    "tiny": "model=tiny tokenizer=bytes trainer.micro_batch=4 trainer.batch_tokens=1024",
    "6x256": "model=tiny model.n_layer=6 model.d_model=256 tokenizer=bytes trainer.micro_batch=4 "
    "trainer.batch_tokens=1024",
    "tiny_gpt2": "model=tiny tokenizer=gpt2 trainer.micro_batch=2 trainer.batch_tokens=512",
    "d12_gpt2": "model=d12 model.seq_len=512 tokenizer=gpt2 trainer.micro_batch=1 trainer.batch_tokens=512",
}
OWN = ("fp32 off", "fp32 regional", "fp32 full", "bf16 regional", "bf16 full")  # beside the default
PEERS = ("nocap_test", "nanogpt", "nanochat")
ALL = ("fp32 off", "fp32 full", "bf16 off", "bf16 full")  # of each peer
# A compiled arm costs half a minute before it is timed: beyond nano only what can be a peer's best, where
# heads are narrow fp32.
FEWER = {
    "nano": {"own": OWN[1:], **dict.fromkeys(PEERS, ALL)},  # whose default is fp32, eager
    "tiny": {"own": OWN, "nocap_test": ALL[1::2], "nanogpt": (*ALL[:2], ALL[3]), "nanochat": ALL[1:2]},
    "6x256": {"own": OWN[2:], "nocap_test": ALL[3:], "nanogpt": ALL[1::2], "nanochat": ALL[3:]},
    "tiny_gpt2": {"own": OWN[2:], "nocap_test": ALL[3:], "nanogpt": ALL[1::2], "nanochat": ALL[3:]},
    "d12_gpt2": {"own": OWN[3:], "nocap_test": ALL[3:], "nanogpt": ALL[3:], "nanochat": ALL[3:]},
}
MARK = "<!-- the table -->"


def race(shape: str, rounds: int) -> int:
    argv = [*COMMON.split(), *SHAPES[shape].split(), "--arm", ""]
    for who, settings in FEWER[shape].items():
        for words in (
            "trainer.precision={} trainer.compile={}".format(*setting.split()) for setting in settings
        ):
            argv += ["--arm", words] if who == "own" else ["--arm-external", f"{HERE / f'{who}.py'} {words}"]
    argv += ["--rounds", str(rounds), "--json", str(HERE / f"{shape}.json")]
    print("python -m nocap.bench", shlex.join(argv), f"\nload before: {os.getloadavg()}")
    code = bench.main(argv)
    spent = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"load after: {os.getloadavg()}; CPU {spent[0]:.0f} s, and {spent[1]:.0f} s of compilers")
    return code


# --- the table ----------------------------------------------------------------------------------------------


def table() -> str:
    head = (
        "| shape | peer | its best setting | nocap's default against it | nocap's best "
        "against it | nocap's best | A/A control |"
    )
    lines = [head, "|---" * 7 + "|"]
    for shape in SHAPES:
        if (path := HERE / f"{shape}.json").exists():
            lines += rows(shape, json.loads(path.read_text()))
    return "\n".join(lines)


def rows(shape: str, timings: dict[str, Any]) -> list[str]:
    arms = [arm for arm in timings["arms"] if arm["status"] == "measured"]
    default, best = timings["arms"][0], fastest(arm for arm in arms if "external" not in arm["config"])
    control = timings["control"]["speed"]
    lines = []
    for peer in PEERS:
        rival = fastest(arm for arm in arms if arm["config"].get("external", {}).get("file") == f"{peer}.py")
        ours = [
            f"{e.mid:.2f}× [{e.low:.2f}, {e.high:.2f}]"
            for e in (speed_over(own, rival) for own in (default, best))
        ]
        cells = [
            shape,
            rival["settings"]["model"],
            short(rival),
            *ours,
            short(best),
            f"{control['low']:.2f} to {control['high']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def speed_over(arm: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Of two arms of a bench: tokens/s of one over the other's, round by round."""
    arm_log_s, other_log_s = (np.log(np.mean(timed["seconds_per_token"], axis=1)) for timed in (arm, other))
    return of_pairs(other_log_s - arm_log_s).exp()


def fastest(arms: Any) -> dict[str, Any]:
    return max(arms, key=lambda arm: arm["tokens_per_s"])


def short(arm: dict[str, Any]) -> str:
    """Precision and compilation."""
    t = arm["config"]["external"]["request"] if "external" in arm["config"] else arm["config"]["trainer"]
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
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="of the bench (default: 12)")
    parser.add_argument("--tell", action="store_true", help="write the table")
    options = parser.parse_args()
    if (options.shape is None) is not options.tell:
        parser.error("give a shape, or --tell")
    return tell() if options.tell else race(options.shape, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
