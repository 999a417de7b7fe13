"""The training loop, its step, and what keeps it: checkpoints, clock, ranks."""
