"""The options: a folder a group, an option or family of options a file."""
