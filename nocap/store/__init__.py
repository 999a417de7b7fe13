"""A run on disk: its identity, its record, its trackers."""
