"""What people type who know another trainer, and what it is called here, or why it is not there."""

from __future__ import annotations

STEPS = "the number of updates is trainer.steps"
BATCH = (
    "tokens of an update are trainer.batch_tokens, sequences of a forward are trainer.micro_batch"
)
LAYERS = "the number of blocks is model.n_layer"
HEADS = "the number of query heads is model.n_head"
WIDTH = "the model's width is model.d_model"
LENGTH = "the length of a sequence in tokens is model.seq_len"
RATE = "the learning rate is optimizer.lr"
VALIDATION = "the steps between validations are trainer.val_every"
DROPOUT = "nocap's models have no dropout"

# a key or a value → how the line ends that refuses it
GUESSES = {
    "batch_size": BATCH,
    "gradient_accumulation_steps": BATCH,
    "epochs": f"a run has no epochs; {STEPS}",
    "num_epochs": f"a run has no epochs; {STEPS}",
    "max_iters": STEPS,
    "max_steps": STEPS,
    "num_iterations": STEPS,
    "dropout": DROPOUT,
    "seeds": "a run has one seed; seed=0,1,2 with --multirun trains a run for each seed",
    "n_layers": LAYERS,
    "num_layers": LAYERS,
    "depth": LAYERS,
    "n_heads": HEADS,
    "num_heads": HEADS,
    "n_embd": WIDTH,
    "hidden_size": WIDTH,
    "block_size": LENGTH,
    "context_length": LENGTH,
    "sequence_length": LENGTH,
    "learning_rate": RATE,
    "eval_interval": VALIDATION,
    "val_loss_every": VALIDATION,
    "gpt2": "GPT-2 of 124M parameters is model=d12 tokenizer=gpt2",
}


def hint_for(name: str) -> str:
    """Return how the line ends that refuses this key or value; empty: nobody is known to guess
    it."""
    known = GUESSES.get(name)
    if known is None:
        return ""
    return f": {known}"
