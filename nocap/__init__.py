"""nocap: a bench for GPT pretraining-speed ablations whose results can be trusted."""

import sys

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m nocap.…` looks for modules in the working directory first, where a random.py would
    # be run in place of Python's. Now it looks there last.
    sys.path.append(sys.path.pop(0))
