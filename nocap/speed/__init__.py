"""How fast a training step is: arms side by side, in one process, interleaved."""
