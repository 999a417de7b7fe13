"""Logs of other trainers as records.

Its files, in the order of the steps:

    load             take all steps: from paths to records
    files            find the logs below some paths; `nocap.sources.formats` read their rows
    columns          say which key of nocap's a column has, and the number in a cell
    log_row          read what a row says, key by key
    rows             sort the rows of a log into runs
    run              hold one run, and see where its steps go back and where it ended
    run_names        what names a run, with examples of the arm and the seed that follow
    arms_and_seeds   find the arm and the seed of each run, step by step
    name_patterns    what stands in names besides an arm: seeds, times, hashes, numbers
    names_flag       read arm and seed at the places that `--names` says
    records          make the records, and leave out copies
"""
