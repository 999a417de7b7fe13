"""The training loop, its step, and what keeps it: checkpoints, clock, ranks.

The loop:

    loop              set up, then step by step to the end
    job               what one rank trains, and its callbacks to the process around it
    resume            go on from the newest valid checkpoint
    warm_up           compile the model and make its CUDA graph before the first step is timed
    build             the model, its optimizers and its windows; how numbers are computed
    step              the training step: batch, losses, gradients, update
    validation        the validation loss
    optimizer         parts of optimizers that an option may use
    build_optimizers  a run's optimizers from its option; their learning rates
    cuda_graph        a micro-batch as one CUDA graph
    probe             try a model's forward: causal, and the same twice
    world             the ranks: which one this is, what they agree on

Its memory:

    memory        the parts of it: held, saved for the backward, peak
    memory_limit  how much there is, and errors that say that it was not enough
    allocator     how glibc keeps the memory of a process that trains on a CPU

The record that it leaves:

    recorder    rows, checkpoints, loss spikes, totals
    spikes      how far a loss lies above those before it
    saving      write checkpoints, each whole, and delete old ones
    loading     find the newest valid checkpoint, and put it into model and optimizers
    state       the state of model and optimizers as a checkpoint has it
    ledger      where the wall-clock time went
    summary     `summary.json`, a run in one object

After the training:

    trained              a run's model, to generate from or to learn from
    export_file          a run's model in one file, and back
    transformers_export  a run's model as `transformers` reads it
"""
