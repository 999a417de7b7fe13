"""The config: its tree, what each key counts for, composing and refusing. No torch.

The tree:

    keys           declare a key, what it counts for, and refuse a value
    option         the interface of an option, a part of the tree
    run            the whole tree: one key a group of options
    trainer        the keys under `trainer` and `search`

From a command line to a checked `Run`:

    flags          the flags of `nocap.train`, listed once
    lexer          the characters of a value, as they were typed
    choices        the options that overrides choose, composed by Hydra
    compose        from overrides to a `Run`
    plain          plain values as a checked dataclass, and back: the one door
    defaults       values that a run gets that does not choose them
    gpu            such values on a GPU, each rule beside its figures
    guesses        names of other trainers, and nocap's own for them
    manual         the page of `--help`
    hydra_answers  `--info`, and the completion of a shell

The process around it:

    entry          how a command or a worker begins and ends as a process
    errors         the exit codes; an error as one line, and the exit code after it
    bounded        read text that anybody may have written
    outward        take secrets and control characters out of what leaves
    hardware       what this machine is, without torch
    paths          where the configuration tree and the cache lie
"""
