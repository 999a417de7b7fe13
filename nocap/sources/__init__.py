"""Measurements from elsewhere: of anybody's command, and of what other trainers wrote.

Commands that take turns:

    race             the race: which arm runs when, and when it stops
    race_rows        what a raced run measured, read from its folder
    race_arms        the arms of a race, from commands or from git refs
    repository       the git repository of a raced command, a worktree for each version
    command_words    the words of a command that is typed as one text
    command_program  what a command runs: its program, scripts and packages
    command          one run of a command, its time and its memory
    command_output   what a run printed or wrote, and the metrics in it
    race_json        the result of a race as JSON, and what to type next
    race_tables      the result of a race as tables
    race_page        the result of a race as a page
    loaded           says which files a raced Python has loaded

Logs of other trainers:

    logs             logs of other trainers as records
    formats          the formats of logs, a file each
    compare_paths    the comparison of paths: runs, logs or results, with the question in these

Both:

    log_reading      reads the lines of a log, or of what a command printed
"""
