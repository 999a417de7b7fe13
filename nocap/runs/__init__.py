"""A life with many runs: which there are, what one is, what they hold on the disk, and what may
go."""
