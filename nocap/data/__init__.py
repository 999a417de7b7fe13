"""Token shards: made from text, downloaded, checked, and served as batches.

Its files:

    __main__      the command: list, prepare and verify shards
    prepare       from `data=…` and `tokenizer=…` to shards on this disk, checked
    corpus        text cut into documents and splits, and encoded
    synthetic     a Markov chain whose entropy is known
    tokenizer     the built-in vocabularies
    shard_cache   sets of shards that are made once and kept in the cache
    shards        write a shard, and check one before a run reads it
    tokens        read the tokens of a shard
    overlap       how much of validation stands in training, too
    windows       the stretches of tokens that are read, in the order of training
    batches       which tokens each step reads
"""
