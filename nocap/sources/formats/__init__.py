"""Formats of logs that other trainers write: a Python file each. It defines

    PATTERN              the files of a folder that may be such logs: globs with blanks between
    read(path)           yields the rows of one log in order, mappings from names to numbers and
                         texts

and may define

    recognises(sample)   says whether a file is such a log, by a `Sample` of what is in it
    run_of(path)         names what a file is a piece of; `read` then takes all its pieces:
                         read(*paths)
    SURE = True          a file of such a name is such a log, and named where it cannot be read
    GENERAL = True       a file that another format recognises is that format's
    REMOTE = True        a path that is no file is a name on a server

Names that count are those of `nocap.sources.logs.columns.KEYS`, in the units there; `config/NAME`
is a setting of the run, `final/NAME` a loss that was measured after training. Other names are
offered to `--columns`. `line` is where a row stands, for messages. What is wrong with a log is a
ValueError that begins with its line; where its end alone was cut, a `CutError` after the rows
before that. A log may be larger than the memory. `nocap.sources.log_reading` reads lines; what a
format needs of it can be imported from here.
"""

from nocap.sources.log_reading import (
    CutError,
    Row,
    Sample,
    full_match,
    lines,
    opened,
    printed,
    sample,
)

__all__ = ["CutError", "Row", "Sample", "full_match", "lines", "opened", "printed", "sample"]
