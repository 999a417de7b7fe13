"""The smallest external arm: a table of bigrams under SGD."""

import torch
from torch import nn


def build(request, *, rate="0.1"):
    model = nn.Embedding(request.vocab_size, request.vocab_size).to(request.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))

    def step(tokens):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.parameters, step.optimizers = list(model.parameters()), [optimizer]
    step.settings = {"model": "bigrams", "rate": float(rate), "precision": "fp32"}
    return step
