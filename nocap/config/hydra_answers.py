"""What Hydra itself answers: `--info`, and the completion of a line in a shell."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from nocap.config.choices import HYDRA, prepare_hydra, search_path
from nocap.config.compose import raw_config
from nocap.config.flags import Flags
from nocap.config.overrides import is_choice, overrides_of
from nocap.config.paths import conf_dir

INTERPOLATED = re.compile(r'"[^"]*\$\{[^"]*"')  # a value that follows from other keys, in JSON


def answer(flags: Flags) -> None:
    """Print what Hydra answers to `--info`, or to a shell that completes a line.

    Errors:
        ValueError: as for `raw_config`.
    """
    # its errors come here; else it would print them, and exit with 1
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if flags.shell_completion:
        _store_for_completion()
        _ask_hydra("completion", ["--shell-completion", *flags.overrides])
    else:
        overrides = overrides_of(flags.overrides)
        choices = [str(each.input_line) for each in overrides if is_choice(each)]
        _ask_hydra("train", [f"--info={flags.info}", *choices, *search_path()])


def _store_for_completion() -> None:
    """Give Hydra the config that the line so far makes, and the line."""
    *typed, last = os.environ.get("COMP_LINE", "").split(" ")
    config = raw_config([])[0]
    overrides = [word for word in typed if "=" in word and not word.startswith("-")]
    with suppress(ValueError):
        config = raw_config(overrides)[0]
    values = json.dumps(OmegaConf.to_container(config, enum_to_str=True))
    node = json.loads(INTERPOLATED.sub("null", values))
    ConfigStore.instance().store(name="completion", node=node)
    os.environ["COMP_LINE"] = " ".join(["nocap", *search_path(), last])


def _ask_hydra(name: str, arguments: Sequence[str]) -> None:
    """Run Hydra with these arguments on the config of this name, and print what it prints."""
    sys.argv[1:] = arguments
    prepare_hydra()
    printed = io.StringIO()
    with redirect_stdout(printed):  # else Hydra's logging passes over what cannot be written
        hydra.main(config_path=str(conf_dir()), config_name=name, **HYDRA)(lambda config: None)()
    print(printed.getvalue(), end="")
