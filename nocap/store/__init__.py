"""A run on disk: its identity, its record, its trackers.

Its files:

    identity       what makes two runs the same run
    source_hashes  the source of what computes a run's numbers, a hash for each module
    checkout       the git checkout that nocap runs from
    record_files   the files of a run: names, shapes, digests; write, read and check them
    attempt_entry  an attempt at a run, as the manifest lists it
    rows_file      the rows of a run, `metrics.jsonl`
    json_shapes    what a file of JSON may hold
    record         a run as its folder has it, as one `Record`, with its measurements
    runs           find runs by folder, grid or name, and load the record of each
    measurement    a value of a metric, of one arm in one repeat
    times          times as records have them, in ISO 8601
    grid_file      the file of a grid: name, shape, its cells
    grid_timing    times of a grid's arms in turns, as `--time` keeps them
    checkpoints    name checkpoints, find them, and say what is wrong with one
    lease          one holder of a folder, among all machines
    file_writing   write a file whole or not at all; remove what killed writers left
    tracking       trackers mirror the record; one that fails costs a warning
"""
