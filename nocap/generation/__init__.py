"""Generate text with a trained run.

Its files:

    sampling  from a checkpoint and a prompt to text: the sampler, the tokens and their rate
    engines   logits of the next token, with a cache or without
"""
