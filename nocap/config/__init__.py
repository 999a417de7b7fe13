"""The config: its tree, what each key counts for, composing and refusing. No torch."""
