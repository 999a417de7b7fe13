"""The model: a GPT of interchangeable parts, and the arithmetic of its cost.

Its files:

    build            a run's model, whichever option makes it; its parameters
    gpt              embedding, blocks, head; the forward returns the loss
    language_model   the interface of every model, and how ideas plug in
    context          what the layers of one forward share
    loss             what a forward returns
    head             final norm, unembedding and cross-entropy
    first_weights    weights that depend on the seed and on their own place alone
    self_attention   projections around the mixer that an option chooses
    attention        the mixers: materialised, fused, FlexAttention
    documents        which tokens a query sees: windows, documents, masks
    attention_facts  the kernel and the window of a run's attention
    sliding          a sliding window that runs anywhere, by chunks
    mlp              the feed-forward branch
    norm             normalisation over channels
    position         rotary embedding
    chunked          head and loss a chunk of tokens at a time
    precision        the precision in which products run
    fp8              a matrix product in 8-bit floats
    compiled         `torch.compile` without a fallback that nobody sees
    logged           values that a module wants in the record: `log`
    flops            operations of a training token, by formulas
    counted_flops    operations of code without a formula, counted
"""
