"""`python -m nocap.eval`: a run's model on tasks of lm-eval, EleutherAI's harness."""

from __future__ import annotations

import argparse
from pathlib import Path

from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.store.command import add_allow_code, add_outputs, command
from nocap.store.formats import plural
from nocap.store.runs import LAST

KEPT = ("results", "groups", "versions", "n-shot", "n-samples")  # of what lm-eval returns


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _evaluate, argv, answer="all results")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.eval",
        description="Evaluate the model of a run's newest checkpoint, or of an exported file, on tasks "
        "of lm-eval.",
        epilog="It needs the extra: pip install 'nocap[eval]'.",
    )
    about = "a name, its beginning, an identity, last (the default), a folder, or a file of nocap.export"
    parser.add_argument("run", nargs="?", default=LAST, metavar="RUN", help=about)
    parser.add_argument(
        "--tasks",
        required=True,
        metavar="A,B",
        help="names of lm-eval's tasks, or yaml files, which may run code",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N documents of each task")
    parser.add_argument(
        "--num-fewshot", type=int, metavar="N", help="examples before each question (default: the task's)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="texts scored at once (default: %(default)s)"
    )
    parser.add_argument(
        "--device", choices=[device.value for device in Device], help="default: a GPU where there is one"
    )
    add_outputs(parser)
    add_allow_code(parser)
    return parser


def _evaluate(options: argparse.Namespace) -> int:
    for key in ("limit", "num_fewshot", "batch_size"):
        least, given = int(key != "num_fewshot"), getattr(options, key)
        require(given is None or given >= least, f"--{key.replace('_', '-')}", f"be at least {least}", given)
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
        from lm_eval.utils import make_table
    except ModuleNotFoundError as error:
        raise ValueError("nocap.eval must have lm-eval: pip install 'nocap[eval]'") from error
    from nocap.measure.generation import load_typed, log
    from nocap.measure.harness import Harnessed

    device = Device(options.device) if options.device else None
    trained = load_typed(
        options.run, outputs=options.output_dir, device=device, allow_code=options.allow_code
    )
    model = Harnessed(trained, batch_size=options.batch_size)
    names = options.tasks.split(",")
    # there are 14,000: a minute
    tasks = TaskManager(include_defaults=not all(Path(name).is_file() for name in names))
    unknown = [name for name in names if name not in tasks.all_tasks and not Path(name).is_file()]
    require(not unknown, "--tasks", "be names of lm-eval's tasks, or yaml files", ", ".join(unknown))
    results = lm_eval.simple_evaluate(
        model,
        tasks=names,
        task_manager=tasks,
        limit=options.limit,
        num_fewshot=options.num_fewshot,
        log_samples=False,
    )
    print(make_table(results))
    if model.shortened:
        log(
            f"{plural(model.shortened, 'text')} longer than the model's context, "
            f"{model.positions} tokens: only the end was read"
        )
    about = {"run": trained.name, "checkpoint_step": trained.step, "tokenizer": trained.run.tokenizer.name}
    options.answer({**about, "limit": options.limit, **{key: results[key] for key in KEPT if key in results}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
