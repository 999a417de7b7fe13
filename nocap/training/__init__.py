"""The training loop, its step, and what keeps it: checkpoints, clock, ranks.

The loop:

    loop        set up, then step by step to the end
    step        the training step: model, data, loss, update
    optimizer   parameter groups and rates that optimizer options use
    graphed     a micro-batch as one CUDA graph
    probe       try a model's forward: causal, and the same twice
    memory      memory in parts: held, saved for the backward, peak
    world       the ranks: which one this is, what they agree on

The record that it leaves:

    recorder    rows, checkpoints, loss spikes, totals
    checkpoint  write a checkpoint whole, and load it (`store.checkpoints` finds it)
    state       the state of model and optimizers as files have it
    ledger      where the wall-clock time went
    summary     `summary.json`, a run in one object
    allocator   how glibc keeps the memory of a process that trains on a CPU

After the training:

    trained              a run's model, to generate from or to learn from
    transformers_export  a run's model as `transformers` reads it
"""
