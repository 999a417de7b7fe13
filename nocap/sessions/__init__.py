"""Arms timed in turns, each session in a process of its own; and what a grid costs and can show.

Sessions:

    session         one session: start its process, and wait while another is timed
    worker          the process of a session: time and profile its arms
    places          what sessions measure, at which shape: a table
    figures         the figures of an arm, by kind of session
    session_file    the file of a session: what was asked for, and the figures of each arm
    in_turns        the sessions of a grid, for `--time`

Forecasts, for `--plan`:

    grid_plan       what a grid would cost
    foresight       what a grid can show
"""
