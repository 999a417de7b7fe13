"""Measurements from elsewhere: of anybody's command, and of what other trainers wrote.

    races          commands that take turns, and what they show
    logs           logs of other trainers as records
    formats        the formats of logs, a file each
    log_reading    reads the lines of a log, or of what a command printed
    compare_paths  asks the judge about paths: runs, logs or results, with the question in these

`races` ask the judge too, look by look. Nothing else here judges.
"""
