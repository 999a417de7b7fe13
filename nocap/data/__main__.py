"""`python -m nocap.data`: list, prepare and verify token shards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config import entry
from nocap.config.paths import cache_root
from nocap.config.run import Run

if TYPE_CHECKING:
    from nocap.data.tokens import Shard

EXIT_BAD = 1  # a shard that does not verify; 2 is bad input


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.data", description="Fetch, tokenise and verify token shards."
    )
    verbs = parser.add_subparsers(dest="verb", metavar="list | prepare | verify")
    for verb, text in (
        ("list", "list the sources, and the data in the cache"),
        (
            "prepare",
            "make or download the data of these overrides, and check it, as in prepare data=stdlib "
            "tokenizer=gpt2",
        ),
        ("verify", "read every byte again and name each bad file"),
    ):
        of_verb = verbs.add_parser(verb, help=text, description=text)
        of_verb.add_argument("overrides", nargs="*", help="data=… tokenizer=… key=value …")
        outside.document(of_verb, answer="the output")
    outside.document(parser)
    arguments = parser.parse_args(outside.arguments(argv))
    if arguments.verb is None:
        parser.print_help()
        return 0
    from nocap.command_line import answering
    from nocap.config.compose import compose  # Hydra, only where it is needed
    from nocap.config.errors import refusals

    with refusals(), answering(arguments.json) as answer:
        run = compose(arguments.overrides)
        reply = {"list": _list, "prepare": _prepare, "verify": _verify}[arguments.verb](
            run, cache_root(run.cache_dir)
        )
        answer(reply)
    return EXIT_BAD if reply.get("bad") else 0


def _list(run: Run, cache_dir: Path) -> dict[str, Any]:
    sources = dict[str, str]()
    for kind, option in outside.all_options("data").items():
        text = option.__doc__ or ""
        # a dataclass without a docstring of its own gets its signature for one
        if text.startswith(f"{option.__name__}("):
            text = sys.modules[option.__module__].__doc__ or ""
        sources[kind] = text.strip().partition("\n")[0]
    sets = [_described(folder) for folder in sorted(cache_dir.glob("corpora/[!.]*"))]
    shown = [f"{kind:<10} {text}" for kind, text in sources.items()]
    print(
        "\n  ".join(["sources (data=…):", *shown]),
        "\n  ".join([f"cache ({cache_dir}):", *(sets or ["nothing yet"])]),
        sep="\n",
    )
    return {"sources": sources, "cache_dir": str(cache_dir), "cache": sets}


def _described(folder: Path) -> str:
    """Return a line about a made set."""
    from nocap.data.shard_cache import read_manifest

    try:
        rows = read_manifest(folder)["shards"]
        train, val = (sum(row["tokens"] for row in rows[split]) for split in ("train", "val"))
        size = sum(
            (folder / row["name"]).stat().st_size for split in rows.values() for row in split
        )
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"{folder.name}  broken: {error}"
    return f"{folder.name}  {train:,} train and {val:,} val tokens  {size / 2**20:.1f} MiB"


def _prepare(run: Run, cache_dir: Path) -> dict[str, Any]:
    from nocap.data.overlap import PASSAGE
    from nocap.data.prepare import prepare

    dataset = prepare(run.data, run.tokenizer, cache_dir=cache_dir)
    for split in ("train", "val"):
        _print(split, getattr(dataset, split))
    train, val = (sum(shard.tokens for shard in shards) for shards in (dataset.train, dataset.val))
    size = f"{train:,} train and {val:,} val tokens of {dataset.vocab_size:,} ids"
    print(", ".join([f"{run.data.kind}: {size}", *_describe_source(dataset.source)]))
    if dataset.in_training:
        share = f"{dataset.in_training:.0%} of validation's passages of {PASSAGE} tokens"
        print(f"{share} also stand in training")
    print(f"fingerprint {dataset.fingerprint}")
    made = {split: list(map(_plain, getattr(dataset, split))) for split in ("train", "val")}
    return {
        **made,
        "source": dataset.source,
        "vocab_size": dataset.vocab_size,
        "fingerprint": dataset.fingerprint,
        "in_training": dataset.in_training,
    }


def _print(what: str, shards: Iterable[Shard]) -> None:
    for shard in shards:
        print(f"{what:<5} {shard.path}  {shard.tokens:,} tokens  sha256 {shard.sha256[:16]}")


def _plain(shard: Shard) -> dict[str, Any]:
    return {"path": str(shard.path), "tokens": shard.tokens, "sha256": shard.sha256}


def _describe_source(source: dict[str, object]) -> Iterator[str]:
    """Yield what the source recorded of itself: documents, skipped files, Python's version, the
    hub's commit."""
    if isinstance(documents := source.get("documents"), dict):
        yield f"from {documents['train']:,} train and {documents['val']:,} val documents"
    if skipped := source.get("skipped"):
        assert isinstance(skipped, list)
        yield (
            f"{len(skipped)} files skipped that are not UTF-8 "
            f"({', '.join(skipped[:3])}{', …' if len(skipped) > 3 else ''})"
        )
    yield from (f"{key} {source[key]}" for key in ("python", "commit") if key in source)


def _verify(run: Run, cache_dir: Path) -> dict[str, Any]:
    from nocap.data.prepare import verify

    good, bad = verify(run.data, run.tokenizer, cache_dir=cache_dir)
    _print("ok", good)
    for line in bad:
        print(f"bad  {line}", file=sys.stderr)
    return {"good": list(map(_plain, good)), "bad": bad}


if __name__ == "__main__":
    entry.run(main)
