"""`python -m nocap.data`: list, prepare and verify token shards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from nocap import outside
from nocap.config import registry
from nocap.config.paths import cache_root
from nocap.config.run import Run

EXIT_BAD = 1  # a shard that does not verify; 2 is bad input


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nocap.data", description="Fetch, tokenise and verify token shards.")
    verbs = parser.add_subparsers(dest="verb", metavar="list | prepare | verify")
    for verb, text in (
        ("list", "the sources there are, and the sets in the cache"),
        ("prepare", "make or download what these overrides need, and check it: prepare data=stdlib tokenizer=gpt2"),
        ("verify", "read every byte again and name each bad file"),
    ):
        verbs.add_parser(verb, help=text, description=text).add_argument("overrides", nargs="*", help="data=… tokenizer=… key=value …")
    outside.document(parser)
    arguments = parser.parse_args(outside.arguments(argv))
    if arguments.verb is None:
        parser.print_help()
        return 0
    from nocap.config.compose import compose  # Hydra, only where it is needed
    from nocap.config.errors import refusals

    with refusals():
        run = compose(arguments.overrides)
        cache_dir = cache_root(run.cache_dir)
        match arguments.verb:
            case "list":
                return _list(cache_dir)
            case "prepare":
                return _prepare(run, cache_dir)
            case verb:
                assert verb == "verify"
                return _verify(run, cache_dir)


def _list(cache_dir: Path) -> int:
    print("sources (data=…):")
    for kind, option in registry.options("data").items():
        words = option.__doc__ or ""  # a dataclass without a docstring of its own gets its signature for one
        said = sys.modules[option.__module__].__doc__ if words.startswith(f"{option.__name__}(") else words
        print(f"  {kind:<10} {(said or '').strip().partition(chr(10))[0]}")
    print(f"cache ({cache_dir}):")
    for line in list(_cached(cache_dir)) or ["nothing yet"]:
        print(f"  {line}")
    return 0


def _cached(cache_dir: Path) -> Iterator[str]:
    import json

    from nocap.data.made import read_manifest

    for folder in sorted((cache_dir / "corpora").glob("[!.]*")):
        try:
            rows = read_manifest(folder)["shards"]
            count = {split: sum(row["tokens"] for row in rows[split]) for split in ("train", "val")}
            size = sum((folder / row["name"]).stat().st_size for split in rows.values() for row in split)
            yield f"{folder.name}  {count['train']:,} train and {count['val']:,} val tokens  {size / 2**20:.1f} MiB"
        except (ValueError, KeyError, TypeError, OSError) as error:
            yield f"{folder.name}  broken: {error}"
    for record in sorted((cache_dir / "fineweb").glob("*.json")):
        try:
            facts = json.loads(record.read_bytes())
            size = sum(row["size"] for row in facts["files"].values())
            yield f"fineweb {facts['repo']} at {facts['commit'][:12]}  {len(facts['files'])} shards known  {size / 2**20:.1f} MiB"
        except (ValueError, KeyError, TypeError, OSError) as error:
            yield f"{record.name}  broken: {error}"


def _prepare(run: Run, cache_dir: Path) -> int:
    from nocap.data.prepare import prepare

    dataset = prepare(run.data, run.tokenizer, cache_dir=cache_dir)
    for split, shards in (("train", dataset.train), ("val", dataset.val)):
        for shard in shards:
            print(f"{split:<5} {shard.path}  {shard.tokens:,} tokens  sha256 {shard.sha256[:16]}")
    tokens = {split: sum(shard.tokens for shard in shards) for split, shards in (("train", dataset.train), ("val", dataset.val))}
    print(
        f"{run.data.kind}: {tokens['train']:,} train and {tokens['val']:,} val tokens of {dataset.vocab_size:,} ids{_facts(dataset.source)}"
    )
    print(f"fingerprint {dataset.fingerprint}")
    return 0


def _facts(source: dict[str, object]) -> str:
    """The source's own facts in words: documents, skipped files, Python's version, the hub's commit."""
    words = ""
    if isinstance(documents := source.get("documents"), dict):
        words += f", from {documents['train']:,} train and {documents['val']:,} val documents"
    if skipped := source.get("skipped"):
        assert isinstance(skipped, list)
        words += f", {len(skipped)} files skipped that are not UTF-8 ({', '.join(skipped[:3])}{', …' if len(skipped) > 3 else ''})"
    return words + "".join(f", {key} {source[key]}" for key in ("python", "commit") if key in source)


def _verify(run: Run, cache_dir: Path) -> int:
    from nocap.data.prepare import verify

    good, bad = verify(run.data, run.tokenizer, cache_dir=cache_dir)
    for shard in good:
        print(f"ok   {shard.path}  {shard.tokens:,} tokens  sha256 {shard.sha256[:16]}")
    for line in bad:
        print(f"bad  {line}", file=sys.stderr)
    return EXIT_BAD if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
