"""The config: its tree, what each key counts for, composing and refusing. No torch.

The tree:

    keys             declare a key, its limits and what it counts for, and refuse a value
    option           the interface of an option, a part of the tree
    run              the whole tree: one key a group of options
    trainer          the keys under `trainer` and `search`

From a command line to a checked `Run`:

    flags            the flags of `nocap.train`, listed once
    override_keys    the key of an override, without Hydra
    override_text    the characters of an override's value, as they were typed
    overrides        overrides by Hydra's grammar: what they set, and which of them choose options
    choices          the options that overrides choose, composed by Hydra
    compose          from overrides to a `Run`
    arm_defaults     compose arms with the defaults of their baseline
    plain            plain values as a checked dataclass, and back: the one door
    explain          what is wrong in one line, and what was probably meant
    resolvers        what a yaml may ask for in place of a value, as in `${nocap.fraction:…}`
    defaults         device, precision, compilation and so on where a run does not choose them
    gpu_defaults     the same on a GPU, each rule beside its figures
    other_trainers   what people type who know another trainer, and what it is called here
    help_page        the page of `--help`
    hydra_answers    `--info`, and the completion of a shell

The process around it:

    entry            how a command or a worker begins and ends as a process
    errors           the exit codes; an error as one line, and the exit code after it
    untrusted_files  read text that anybody may have written
    outgoing_text    take secrets and control characters out of what leaves
    hardware         what this machine is, without torch
    paths            where the configuration tree and the cache lie
"""
