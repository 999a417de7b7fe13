"""Where time and memory go: a step taken apart, its bounds, and what each option could win at most."""
