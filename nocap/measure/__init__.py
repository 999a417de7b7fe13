"""What a step costs: timing, profiling, decoding."""
