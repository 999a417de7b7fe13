"""Text from a trained model: cache, engines, sampling, latency."""
