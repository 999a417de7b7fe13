"""Multi-token prediction: one extra head predicts the token after the next (arXiv:2404.19737)."""

from dataclasses import dataclass

from torch import nn

from nocap.config.keys import require
from nocap.options.ideas import Idea


@dataclass(kw_only=True)
class NextButOne(Idea):
    PER_TOKEN = True  # decoding uses the first head alone
    kind: str = "next_but_one"
    weight: float

    def __post_init__(self):
        require(self.weight > 0, "ideas.next_but_one.weight", "be above 0", self.weight)

    def build(self, run, *, vocab_size):
        return nn.Linear(run.model.d_model, run.model.d_model, bias=False)

    def loss(self, part, x_BTC, targets_BT, head):
        ahead_BTC = x_BTC + part(x_BTC)
        return self.weight * head.next_token(ahead_BTC[:, :-1], targets_BT[:, 1:])
