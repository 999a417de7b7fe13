"""A life with many runs: list them, show one, and remove what may go.

Its files:

    __main__      the command and its arguments
    verbs         what it does: a function a verb
    list_columns  what a list can show, sort by and filter
"""
