"""Any set of runs, compared: what is better, what is worse, and what nobody can tell yet."""
