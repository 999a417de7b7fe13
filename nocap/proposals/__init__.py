"""A program's proposals to a study: each gets an answer, within one error budget."""
