"""Zero-init: the matrices that write attention's and the MLP's output start at 0, and on demand the
head's (modded-nanogpt).

Every block is the identity at first. All other matrices are drawn as they are without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import InputError, require
from nocap.config.option import declared
from nocap.options.ideas import Idea
from nocap.options.model import NormPlacement

if TYPE_CHECKING:
    from nocap.config.run import Run

# a branch → the row of the profile that its last matrix has
OUTPUTS = {"attention": "attention_out", "mlp": "mlp_down"}


@dataclass(kw_only=True, slots=True)
class ZeroInit(Idea):
    PER_TOKEN = True
    kind: str = "zero_init"
    head: bool  # whether the head starts at 0 too

    def check(self, run: Run) -> None:
        rule = "be false beside model.tie_head: the embedding would be 0, and nothing could learn"
        require(not (self.head and run.model.tie_head), "ideas.zero_init.head", rule, self.head)
        placement = run.model.norm_placement
        rule = (
            "be pre or post beside ideas.zero_init: the norm of a branch that gives 0 has no "
            "slope there"
        )
        require(placement is not NormPlacement.both, "model.norm_placement", rule, placement.value)

    def built(self, run: Run, model: Any) -> None:
        from torch import nn

        for branch, row in OUTPUTS.items():
            rows = declared(getattr(run, branch), "rows", of="build")
            last = [name for name, its in rows().items() if its == row] if rows else []
            try:
                places = [
                    getattr(block, branch).f.get_submodule(name)
                    for block in model.blocks
                    for name in last
                ]
            except AttributeError:
                places = []
            if not places:
                rule = (
                    f"have blocks whose {branch} names the matrix of its output, {row}, in rows() "
                    f"for "
                    "ideas.zero_init"
                )
                raise InputError(f"model.kind={run.model.kind} must {rule}")
            for place in places:
                nn.init.zeros_(place.weight)
        if self.head:
            nn.init.zeros_(model.head.unembed.weight)
