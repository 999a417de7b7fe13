"""The smallest arm of the race: a table of bigrams under SGD."""

import torch
from torch import nn


def build(request):
    model = nn.Embedding(request.vocab_size, request.vocab_size).to(request.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(tokens):
        loss = nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.parameters = list(model.parameters())
    step.optimizers = [optimizer]
    step.settings = {"model": "bigrams", "precision": "fp32"}
    return step
