"""The stack's rate, batch, β2, schedule and decay, searched with the trials that the baseline had: recipe.json.

python experiments/atlas/recipe.py [--output-dir DIR]      # after stack.py; conf/experiment/recipe_cpu.yaml is its best trial
"""

from __future__ import annotations

import sys
from datetime import date

import atlas
import jobs

from nocap.config.compose import composed
from nocap.config.keys import require
from nocap.launch.search import Sampler, Search
from nocap.store.record import read_json, write_json

SEARCH = Search(sampler=Sampler.tpe, trials=24, screen=jobs.SHORT, seed=jobs.TUNED_ON)  # as the baseline's was (README.md)
SPACE = [
    "optimizer.lr=tag(log, interval(5e-4, 1e-2))",
    "trainer.batch_tokens=512,1024,2048",
    "optimizer.beta2=0.95,0.98,0.99",
    "schedule=wsd,linear,cosine",
    "optimizer.weight_decay=0.03,0.1,0.3",
]
MUON = "optimizer.muon_lr=tag(log, interval(1e-3, 3e-2))"


def search(output_dir: str) -> int:
    stack = read_json(jobs.STACK) or {}
    require(bool(stack.get("ended")), str(jobs.STACK), "be ended: stack.py", "none")
    space = [*SPACE, *([MUON] if "optimizer=muon" in stack["with"] else [])]
    drawn = {word.partition("=")[0] for word in space}
    fixed = [word for word in stack["with"] if word.partition("=")[0] not in drawn]
    trials = atlas.searched(SEARCH, composed([jobs.SCALE, f"output_dir={output_dir}", *fixed]), space)
    about = {"date": date.today().isoformat(), "seed": SEARCH.seed, "screen": SEARCH.screen}
    write_json(jobs.RECIPE, {"fixed": fixed, **about, "trials": trials})
    print(f"best: {' '.join([*fixed, *trials[0]['with']])}: {trials[0]['val_loss']}", flush=True)
    return 0


def main() -> int:
    options = atlas.parser_of(__doc__).parse_args()
    return atlas.carried_out(lambda: search(options.output_dir))


if __name__ == "__main__":
    sys.exit(main())
