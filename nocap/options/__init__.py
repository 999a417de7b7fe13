"""The shelf where ideas stand: a folder a group, an option or family a file."""
