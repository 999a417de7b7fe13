"""Races: anybody's commands take turns, until the judge is sure.

    race                 the race: which arm runs when, and when it stops
    run_rows             what a raced run measured, read from its folder
    race_arms            the arms of a race, from commands or from git refs
    repository           the git repository of a raced command, a worktree for each version
    command_words        the words of a command that is typed as one text
    command_program      what a command runs: its program, scripts and packages
    command              one run of a command, its time and its memory
    command_output       what a run printed or wrote, and the metrics in it
    result_json          the result of a race as JSON, and what to type next
    result_tables        the result of a race as tables
    result_page          the result of a race as a page
    loaded_files_report  says which files a raced Python has loaded

A result is judged by `nocap.judge.races`.
"""
