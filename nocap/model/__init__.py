"""The model: a GPT of interchangeable parts, and the arithmetic of its cost.

Its files:

    gpt             embedding, blocks, head; the forward returns the loss
    language_model  the interface of every model, and how ideas plug in
    attention       projections, and the mixer that an option chooses
    sliding         a sliding window that runs anywhere, by chunks
    mlp             the feed-forward branch
    norm            normalisation over channels
    position        rotary embedding
    chunked         head and loss a chunk of tokens at a time
    fp8             a matrix product in 8-bit floats
    compiled        `torch.compile` without a fallback that nobody sees
    logged          values that a module wants in the record: `log`
    flops           operations of a training token
"""
