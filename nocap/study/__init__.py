"""Claims written down before the runs, and verdicts that follow from them mechanically."""
