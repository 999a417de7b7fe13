"""Damage to records, through every door, in process: what `tests/test_fuzz.py` and `python -m
tests.fuzz` try at random."""
