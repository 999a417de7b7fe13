"""Value embeddings: a table of its own adds to a layer's values, by a learned gate (modded-nanogpt)."""

from dataclasses import dataclass

import torch
from torch import nn

from nocap.config.keys import require
from nocap.options.ideas import Idea


class Table(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.gate = nn.Parameter(torch.tensor(0.1))


@dataclass(kw_only=True)
class MyValueEmbeddings(Idea):
    PER_TOKEN = True
    kind: str = "my_value_embeddings"
    every: int  # layers

    def __post_init__(self):
        require(self.every >= 1, "ideas.my_value_embeddings.every", "be at least 1", self.every)

    def build_layer(self, run, layer):
        width = run.attention.n_kv_heads * run.model.d_model // run.model.n_head
        return Table(run.tokenizer.vocab_size, width) if layer % self.every == 0 else None

    def qkv(self, part, q_BTHD, k_BTKD, v_BTKD, context):
        extra = part.table(context.tokens_BT).unflatten(2, v_BTKD.shape[2:])
        return q_BTHD, k_BTKD, v_BTKD + part.gate * extra
