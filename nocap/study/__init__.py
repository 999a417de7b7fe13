"""Claims written down before the runs, and verdicts that follow from them mechanically.

From the file to the runs:

    __main__             the command: its arguments
    study_command        what the command does: carry out, judge or plan studies, write the board
    spec                 a study as its `study.yaml` has it
    spec_checks          what must hold of a study before anything runs
    study_folder         the folder of a study: find it, read its file
    study_plan           a study at one scale: its arms composed and checked
    plan_preview         what a study would run and cost, for `--plan`
    tasks                the runs and sessions that a study needs, each done once
    bench_sessions       benches of other days as sessions, for `--sessions-from`
    carry_out            carry a study out, analysis by analysis, until its claims are decided
    conductor            train what is missing, time what is due, and collect what there is
    log                  the file of registrations, runs, sessions and analyses
    log_writer           write into it what a study does
    registration         the hash of all that decides a claim
    standing             where a claim stands by the log: what was known when it was registered

From what was measured to a result:

    evidence             all that runs and sessions measured
    bounds               the gain that arithmetic allows a claim
    claim_measurements   the measurements of one claim, and its verdict
    arm_facts            the arms of a result: shape, speed, losses, trials
    study_result         the types of a result
    result_maker         make it of a study that was carried out
    result_schema        its types as JSON
    result_writer        write it
    result_reader        read it, and judge its measurements again
    current_claims       what a study asks now; stored results are checked against it
    next_sessions        the sessions that would decide more, for a program
    proposals            a program's proposals, and an answer to each: a folder

From results to pages:

    claim_words          a claim, its guards and what was measured, in words
    claim_cells          what tables say of a claim, and the title of each column
    claim_row            a claim of a result as a row of a table
    claim_plots          forest plots of claims
    study_pages          tables for a terminal, and the study's README
    board                the leaderboard of a folder of studies
    board_sections       what it knows: the claims, by groups
    board_pages          its README and its page

A verdict passes through these types, each made from the one before it:

1. `Evidence`: all that was measured. `conductor` makes it, `claim_measurements` judges by it.
2. `StudyOutcome`: that evidence, its plan, and where each claim stands by the log. `carry_out`
   makes it, `result_maker` reads it.
3. `StudyResult`, with a `ClaimResult` for each claim: the verdicts and what they rest on.
   `result_maker` makes it, and `result_reader` makes it of a file; `result_writer` and `claim_row`
   read it.
4. `ClaimRow`: a `ClaimResult` in words. `claim_row` makes it, the pages read it.

The first two live while a study is carried out. A `StudyResult` is what stays, in a file; the board
and a README are made from such files alone.
"""
