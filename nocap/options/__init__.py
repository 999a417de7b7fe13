"""What can be chosen: a folder a group, a file an option or a family of options. The names that a
command takes are the yamls of `conf/GROUP`. A group's `__init__` has the interface of its options.

    run_parts   what an interface knows of a run

A part of the model:

    attention   how a token gathers from those before it
                  softmax: `flash`, `mha`, `gqa`, `mqa`; sliding: `sliding`, `hybrid`
                  kernel: the kernels, and which of them run where
                  yaml_defaults: the heads, kernels and pattern that these yamls ask for
    mlp         what is done to each token by itself
                  feedforward: `gelu4x`, `gelu3x`, `relu2`, `swiglu`
    norm        normalisation
                  channels: `rmsnorm`, `rmsnorm_gain`, `layernorm`
    position    how a token knows where it stands
                  rope, learned, none
    model       the shape of the transformer
                  gpt: `tiny`, `d12` and the other sizes

How it trains:

    optimizer   adamw, muon, soap, schedule_free
    schedule    the learning rate, step by step
                  decay: `constant`, `linear`, `cosine`, `wsd`
    objective   what training minimises
                  cross_entropy: next-token cross-entropy
    ideas       small changes that fit no other group and mix freely: a file an idea

What it trains on, where it runs, and who is told:

    data        where the tokens come from
                  fineweb, shards, synthetic; text: `stdlib`, `text`
                  reading: the order of the tokens, and their type
    tokenizer   text to token ids and back
                  vocabulary: `bytes`, `gpt2`
    launcher    where the cells of a grid run
                  pool, slurm, ray
    tracker     where the rows of a run go besides its own record
                  none, tensorboard; wandb, which is a folder
"""
