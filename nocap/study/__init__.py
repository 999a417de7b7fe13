"""Claims written down before the runs, and verdicts that follow from them mechanically.

From the file to the runs:

    __main__             the command: its arguments
    study_command        what the command does: carry out, judge or plan studies, write the board
    spec                 a study as its `study.yaml` has it
    study_plan           a study at one scale: its arms composed and checked
    plan_preview         what a study would run and cost, for `--plan`
    log                  the file of registrations, results and verdicts
    registration         the hash of all that decides a claim, and where a claim stands by the log
    tasks                the runs and sessions that a study needs, each done once
    bench_sessions       benches of other days as sessions, for `--sessions-from`
    carry_out            carry a study out: register, train, time, judge

From what was measured to the pages:

    evidence             all that runs and sessions measured
    bounds               the gain that arithmetic allows a claim
    claim_measurements   the measurements of one claim, and its verdict
    result_maker    make the result of a study that was carried out
    next_sessions        the sessions that would decide more, for a program
    result_schema         the types of the result as JSON
    study_result         the result: written and read
    current_claims       what a study asks now; stored results are checked against it
    claim_row            a claim in words, as a row of a table
    study_pages          tables for a terminal, the study's README, forest plots
    board                the leaderboard of a folder of studies
"""
