"""A run on disk: its identity, its record, its trackers.

Its files:

    identity      what makes two runs the same run
    record_files  the files of a run: names, shapes, digests; write, read and check them
    record        a run as its folder has it, as one `Record`, with its measurements
    runs          find runs by folder, grid or name, and load the record of each
    metrics       the registry of metrics; a `Measurement` is a value of one
    timing        times of a grid's arms in turns, as `--time` keeps them
    checkpoints   name checkpoints, and find them (`training.checkpoint` reads them)
    lease         one holder of a folder, among all machines
    file_writing  write a file whole or not at all
    tracking      trackers mirror the record; one that fails costs a warning
"""
