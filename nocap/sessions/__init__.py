"""Arms timed in turns, each session in a process of its own; and what a grid costs and can show."""
