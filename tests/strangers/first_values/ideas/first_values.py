"""Value residual (arXiv:2410.17897): later layers mix in the first one's values, (1 - λ)·v + λ·v₁,
a learned λ a layer."""

from dataclasses import dataclass

import torch
from torch import nn

from nocap.config.keys import require
from nocap.options.ideas import Idea, Rate


@dataclass(kw_only=True)
class FirstValues(Idea):
    PER_TOKEN = True
    kind: str = "first_values"
    share: float  # λ at the start
    lr: float  # the λs' learning rate, as a factor

    def __post_init__(self):
        require(self.lr > 0, "ideas.first_values.lr", "be above 0", self.lr)

    def check(self, run):
        layers = run.model.n_layer
        require(layers >= 2, "model.n_layer", "be at least 2 beside ideas.first_values", layers)

    def build_layer(self, run, layer):
        return nn.ParameterDict({"share": nn.Parameter(torch.tensor(self.share))} if layer else {})

    def qkv(self, part, q_BTHD, k_BTKD, v_BTKD, context):
        if "share" not in part:
            context.memory["first_values"] = v_BTKD
            return q_BTHD, k_BTKD, v_BTKD
        first_BTKD = context.memory["first_values"]
        share = part["share"].type_as(v_BTKD)
        return q_BTHD, k_BTKD, torch.lerp(v_BTKD, first_BTKD, share)

    def rates(self, name):
        if ".ideas.first_values." in name:
            return Rate(lr=self.lr)
        return Rate()
