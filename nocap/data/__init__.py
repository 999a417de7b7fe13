"""Token shards: made from text, downloaded, checked, and served as batches."""
