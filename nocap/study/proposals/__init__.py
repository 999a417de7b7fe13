"""A program's proposals to a study: each gets an answer, within one error budget.

Its files:

    propose_command      the command: read the proposals, answer one after the other
    override_proposals   proposals that are overrides of nocap's own trainer, trained like runs
    command_proposals    proposals that are anybody's commands, and how each is run
    campaign             all answers of a study, and what the error budget still allows
"""
