"""The checks of an option, which the suite runs on nocap's own and `nocap check` on yours.

Its files:

    contract  what an option of each group must pass
    trial     an option on trial: its small run and its processes
"""
