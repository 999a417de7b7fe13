"""Start runs: one, a grid of them, on this machine or a cluster's; and the worker at the other end.

A run, in the process of the command:

    single            the command that trains one run
    plan              from a checked config to a plan: data, identity, folder
    earlier_runs      the run that this one begins from, and its teachers
    run_folder        what lies in a run's folder: its end, damage, half-done runs beside it
    seed_request      the seeds of each arm that a command asks for
    first_screen      the lines that a person reads before a run begins
    attempt           bring a planned run to its end: lease, workers, restarts, summary
    record_head       `config.yaml` and `manifest.json`, before the training
    leftovers         files of a run that may be deleted: of a killed attempt, of checkpoints
    run_result        how a run ended, as its processes tell each other
    run_table         a run in a few lines, at its end

Its workers, each a process (in a grid `forker` forks them, elsewhere each is a fresh one):

    workers           start a process for each device, watch them, and say how they ended
    environment       the variables by which a process tells its worker what only it knows
    fork_server       start the process that forks, and talk to it
    forker            that process: it has imported torch, and waits
    worker            one rank of a run: it calls `nocap.training.loop`
    worker_failure    the line in which a worker says why it failed, and the summary then
    torchrun_rank     one rank of a torchrun that somebody else started
    process           the name of a process, and its end with its parent's
    signals           requests to stop, passed on once
    heartbeat         signs of life that ranks send, and who hangs
    progress          progress on a terminal and in `train.log`

A grid:

    multirun          read the command, plan all cells, train what is missing
    sweep             the values that are swept, and the cells that they make together
    grid              the cells, planned, in the order in which they run, and their file
    baseline_lengths  the baseline at other lengths, for `--equal-loss`
    seed_looks        more seeds, look by look, for `--until-shown`
    grid_end          the counts, the comparison, and uploads that are missing
    grid_page         `report.html`, drawn only where its content changed

A search:

    search_space      what each key may be, and what the sampler proposes
    search_trial      a trial: its settings, its run, its end
    search            ask for trials, train them, keep their losses

Where cells run:

    chosen_launcher   the launcher that the command chooses, and the grid on its machines
    runner            train the cells: hand them to an executor, follow and stop them
    executor          the interface of an executor, which launcher options build
    this_machine      the executor of this machine: its cores and GPUs, shared out among cells
    cluster_cell      a cell as a job of a cluster
    slurm_jobs        the executor of Slurm
    ray_tasks         the executor of a Ray cluster

For a tracker:

    run_facts         the facts of a run that it gets
    upload            send a record to its server after the training
"""
