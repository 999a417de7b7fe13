"""Start runs: one, a grid of them, on this machine or a cluster's; and the worker at the other end.

A run, in the process of the command:

    single        the command that trains one run
    plan          from a checked config to a plan: data, identity, folder
    run_folder    what lies in a run's folder: its end, damage, half-done runs beside it
    run_result    how a run ended, as its processes tell each other
    seed_request  the seeds of each arm that a command asks for
    earlier_runs  the run that this one begins from, and its teachers
    first_screen  the lines that a person reads before a run begins
    attempt       bring a planned run to its end: lease, workers, restarts, summary
    record_head   `config.yaml` and `manifest.json`, before the training
    run_facts     the facts of a run that trackers get
    leftovers     files of a killed attempt that may be deleted
    signals       requests to stop, passed on once
    run_table     the run in a few lines, at its end

Its workers, each a process (in a grid `forker` forks them, elsewhere each is a fresh one):

    workers        start a process for each device, watch them, and say how they ended
    environment    the variables by which a process tells its worker what only it knows
    fork_server    start the process that forks, and talk to it
    forker         that process: it has imported torch, and waits
    worker         one rank of a run: it calls `nocap.training.loop`
    torchrun_rank  one rank of a torchrun that somebody else started
    process        the name of a process, and its end with its parent's
    heartbeat      signs of life that ranks send, and who hangs
    progress       progress on a terminal and in `train.log`

A grid:

    multirun      read the command, check all cells, train what is missing
    launchers     the launcher that the command chooses, and its machine
    grid          the cells, in the order in which they run, and their file
    lengths       the baseline at other lengths, for `--equal-loss`
    until         more seeds, look by look, for `--until-shown`
    search        a search: ask Optuna, train, tell it the losses
    runner        train the cells: hand them to an executor, follow and stop them
    executor      the interface of an executor, which launcher options build
    cluster_cell  a cell as a job of a cluster
    grid_end      the counts, the comparison, and uploads that are missing
    grid_page     `report.html`, drawn only where its content changed
    mirror        send a record to a tracker's server after its training
"""
