"""Generate text with a trained run.

Its files:

    text     the text: checkpoint, sampler, tokens and their rate
    engines  logits of the next token, with a cache or without
"""
