"""What training and decoding cost: steps timed side by side, a step profiled part by part, text from a
checkpoint."""
