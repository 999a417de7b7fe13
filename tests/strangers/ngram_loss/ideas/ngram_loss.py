"""An n-gram loss: one more head is to give each of the next n tokens, in whatever order.

loss += weight · mean over k = 1 … n of CE(head(x + W·x), the token k ahead). W starts at zero; in
training only.
"""

from dataclasses import dataclass

from torch import nn

from nocap.config.keys import require
from nocap.options.ideas import Idea


@dataclass(kw_only=True)
class NgramLoss(Idea):
    PER_TOKEN = True  # decoding uses the model's head alone
    kind: str = "ngram_loss"
    n: int
    weight: float

    def __post_init__(self):
        require(self.n >= 2, "ideas.ngram_loss.n", "be at least 2", self.n)
        require(self.weight > 0, "ideas.ngram_loss.weight", "be above 0", self.weight)

    def check(self, run):
        T = run.model.seq_len
        require(self.n < T, "ideas.ngram_loss.n", f"be below model.seq_len={T}", self.n)

    def build(self, run, *, vocab_size):
        matrix = nn.Linear(run.model.d_model, run.model.d_model, bias=False)
        nn.init.zeros_(matrix.weight)
        return matrix

    def loss(self, part, x_BTC, targets_BT, head):
        y_BTC = x_BTC + part(x_BTC)
        T = targets_BT.shape[1]
        losses = [head.next_token(y_BTC[:, : T - k], targets_BT[:, k:]) for k in range(self.n)]
        return self.weight / self.n * sum(losses)
