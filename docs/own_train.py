"""A training script that knows nothing of nocap: a bigram model of this page's folder, by
stochastic gradient descent, in numpy."""

import argparse
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("seed", type=int)
parser.add_argument("--lr", type=float, default=3.0)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
tokens = np.frombuffer(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.md"))),
    dtype=np.uint8,
)
train, val = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
logits = rng.normal(0, 0.02, (256, 256))


def log_probabilities(x: np.ndarray) -> np.ndarray:
    z = logits[x] - logits[x].max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


for step in range(args.steps + 1):
    if step % 50 == 0:
        loss = -log_probabilities(val[:-1])[np.arange(len(val) - 1), val[1:]].mean()
        print(f"step {step} val loss {loss:.4f}", flush=True)
    at = rng.integers(0, len(train) - 1, 256)
    gradient = np.exp(log_probabilities(train[at]))
    gradient[np.arange(256), train[at + 1]] -= 1
    np.subtract.at(logits, train[at], args.lr * gradient / 16)
