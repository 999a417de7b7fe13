"""A study's results as tables and texts: for the terminal, its README and the leaderboard. From the results' JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.judge.claim import Threshold
from nocap.report.table import Column, Table, one_line, tame
from nocap.store.files import write_file
from nocap.store.formats import count, fixed, loss, shorten, whole
from nocap.store.metrics import METRICS
from nocap.store.record import read_json, write_json
from nocap.study import log, words
from nocap.study.results import judged
from nocap.study.spec import Study
from nocap.study.words import Json

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet.\n"
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "verdict", "notes")
WORDS = ("confirmed", "exceeded", "refuted", "inconclusive")
NAME = 27  # letters of a name beside a plot
ANYWHERE = ("params", "kv_bytes", "part_params")  # counts that no machine changes; so are the bytes held of these parts:
HELD_ANYWHERE = {"parameters", "gradients", "optimizer"}


class Standing(Enum):
    """What a row says about its claim: the sections of the board, each with its count."""

    there = "on the machine they are about, or counted on any"
    stand_in = "on a CPU in place of the GPU or the larger model they are about"
    project = "by this project's own thresholds"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim at one scale on one machine. `study`: as its folder has it now, or none."""

    one: Json
    claim: Json
    study: Study | None
    elsewhere: list[str] = field(default_factory=list)  # verdicts of the same claim at other shapes that differ

    @property
    def standing(self) -> Standing:
        if self.claim["threshold"] == Threshold.project.value:
            return Standing.project
        name, parts = self.claim["metric"], self.claim["parts"]
        anywhere = name in ANYWHERE or (name == "held_mib" and HELD_ANYWHERE.issuperset(parts))
        on_cpu = self.one["hardware"].get("device", "cpu") == "cpu"
        return Standing.stand_in if self.one["limitations"] and on_cpu and not anywhere else Standing.there

    @property
    def name(self) -> str:
        """`gqa, tokens/s`, as short as a plot needs it."""
        name = f"{self.claim['arm']}, {METRICS[self.claim['metric']].title}"
        return name if len(name) <= NAME else f"{name[: NAME - 1]}…"

    @property
    def at(self) -> str:
        return words.short(self.one, self.claim)

    @property
    def where(self) -> str:
        return words.where(self.claim)

    @property
    def word(self) -> str:
        return str(self.claim["word"])

    @property
    def verdict(self) -> str:
        """`refuted at 1 × 512 tokens, CPU: less than stated`."""
        return words.verdict(self.claim, at=self.at)

    @property
    def measured(self) -> str:
        return words.measured(self.claim) + ("" if words.is_exact(self.claim) else f", {words.pairs(self.claim)}")

    @property
    def caution(self) -> str:
        """What its author says of the row."""
        return self.study.notes.get(self.claim["id"], "") if self.study else ""

    @property
    def notes(self) -> list[str]:
        claim = self.claim
        return [
            *([f"depends on shape: {', '.join(self.elsewhere)}"] if self.elsewhere else []),
            *([words.BEYOND] if claim["beyond_bound"] else []),
            *([self.caution] if self.caution else []),
            *words.stamps(claim),
        ]


def rows(every: Iterable[Json], studies: Mapping[str, Study]) -> list[Row]:
    """Every claim of these results, in their order."""
    some = [Row(one=one, claim=claim, study=studies.get(str(one["study"]))) for one in every for claim in one["claims"]]
    return [replace(row, elsewhere=_differing(row, some)) for row in some]


def _differing(row: Row, every: Sequence[Row]) -> list[str]:
    same = [other for other in every if other.claim["id"] == row.claim["id"] and other.where != row.where]
    return [f"{other.word} at {other.at}" for other in same if other.word != row.word]


def counted(some: Iterable[Row]) -> str:
    """`12 confirmed, 3 refuted`."""
    said = [row.word for row in some]
    return ", ".join(f"{said.count(word)} {word}" for word in WORDS if word in said)


# --- tables --------------------------------------------------------------------------------------------------------------------------

# What a table of claims can say of a row.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "claim": lambda row: str(row.claim["id"]),
    "statement": lambda row: str(row.claim["statement"]),
    "expected": lambda row: f"{words.metric(row.claim)}: {words.expected(row.claim)}",
    "arithmetic allows": lambda row: f"{words.allowed(row.claim)} ({row.claim['bound_formula']})",
    "measured": lambda row: row.measured,
    "guards": lambda row: "; ".join(map(words.guard, row.claim["guards"])),
    "verdict": lambda row: row.verdict,
    "notes": lambda row: "; ".join(row.notes),
    "where": lambda row: row.where,
    "machine, date": lambda row: f"{row.one['hardware']['name']}, {row.one['date']}",
    "command": lambda row: f"`{one_line(row.one['command'])}`",
}


def claims(some: Sequence[Row], names: Sequence[str], *, link: Callable[[Row], str] | None = None) -> Table:
    """A row a claim, with these of the columns. `link`: what stands for its statement."""
    of = COLUMNS if link is None else {**COLUMNS, "statement": link}
    return Table(title="", columns=[Column(title=name) for name in names], rows=[[of[name](row) or None for name in names] for row in some])


def render(results: Json, some: Sequence[Row]) -> str:
    """All of it, for a terminal. `some`: its rows."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    names = ("expected", "arithmetic allows", "measured", "guards", "where", "notes")
    for row in some:
        facts = [f"  {name:<18} {text}" for name in names if (text := COLUMNS[name](row))]
        lines += [f"{row.claim['id']} {row.verdict}: {row.claim['statement']}", *facts, ""]
    return "\n".join([*lines, *map(str, tables(results)), *caveats(results)])


def tables(results: Json) -> Iterator[Table]:
    """The arms, and the trials of the search before the study."""
    yield _arms(results["arms"])
    if trials := results["trials"]:
        columns = [Column(title="tuned arm"), Column(title="trial"), Column(title="val loss", show=loss), Column(title="picked")]
        rows = [[t["arm"], " ".join(t["words"]), t["val_loss"], "yes" if t["picked"] else ""] for t in trials]
        title = f"trials: {len(trials)}, on seeds {trials[0]['seeds']}, which the study does not use"
        yield Table(title=title, columns=columns, rows=rows)


def _arms(arms: Sequence[Json]) -> Table:
    """The fairness columns: what each arm is and what was done for it, beside what it did."""
    columns = [
        Column(title="arm"),
        Column(title="params", show=count, metric="params"),
        Column(title="FLOPs/token", show=count),
        Column(title="kernel"),
        Column(title="tokens", show=count),
        Column(title="trials"),
        Column(title="val loss", show=lambda found: found if isinstance(found, str) else fixed(found, 4), metric="val_loss"),
        Column(title="tokens/s (train)", show=whole, metric="tokens_per_s"),
        Column(title="tokens/s (bench)", show=whole, metric="tokens_per_s"),
        Column(title="MiB", show=whole, metric="memory_mib"),
        Column(title="overrides"),
    ]
    return Table(title="arms", columns=columns, rows=list(map(_arm, arms)))


def _arm(arm: Json) -> list[Any]:
    mean = arm["val_loss"] and arm["val_loss"]["mean"]
    known = [arm[key] for key in ("arm", "params", "flops_per_token", "kernel", "tokens")]
    ended = f"{loss(mean)}, {len(arm['diverged'])} diverged" if arm["diverged"] else mean
    memory = (arm["bench"] or {}).get("memory_mib")
    overrides = " ".join([*arm["words"], *arm["tuned"]])
    return [*known, arm["n_trials"] or None, ended, _speed(arm["pace"]), _speed(arm["bench"]), memory, overrides or None]


def _speed(seen: Json | None) -> float | None:
    speeds = sorted(speed for speed in (seen or {}).get("tokens_per_s", []) if speed is not None)
    return speeds[len(speeds) // 2] if speeds else None


def caveats(results: Json) -> Iterator[str]:
    if results["limitations"]:
        yield f"\nwhat this scale cannot show: {results['limitations']}"
    endings = {
        "diverged": "diverged, counted as worst",
        "censored": "never reached the loss",
        "at_most": "reached the loss in the shortest schedule, so steps are at most that",
    }
    for claim in results["claims"]:
        for ending, told in endings.items():
            if claim[ending]:
                yield f"{claim['id']} ({METRICS[claim['metric']].title}): {told}: {shorten(claim[ending])}"


# --- what a study leaves in its folder -------------------------------------------------------------------------------------------------


def write(study: Study, folder: Path, results: Json) -> list[Path]:
    """The results and the README; which files those are."""
    path = folder / f"results.{results['scale']}.{results['hardware']['fingerprint']}.json"
    write_json(path, results)
    write_file(folder / "README.md", readme(study, folder, all_results(folder)).encode())
    return [path, folder / "README.md"]


def all_results(folder: Path) -> list[dict[str, Any]]:
    """Of every scale and machine that has some, with the verdicts that follow from their measurements.

    Errors:
        ValueError: one that nocap did not write, or that was changed; its file is named.
    """
    known, some = log.read(folder / log.FILE), []
    for path in sorted(folder.glob("results.*.json")):
        one = redact(read_json(path) or {})
        if one.get("kind") == "study":
            try:
                some.append(judged(one, known))
                _section(some[-1], rows(some[-1:], {}))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                raise ValueError(f"{path} must be results that nocap.study wrote, got {why}") from error
    return some


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part has no mark, and would be overwritten.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    path = folder / "README.md"
    ok = not path.exists() or f"{LEARNT}\n" in read_text(path)
    require(ok, str(path), f"have the line '{LEARNT}', below which its author's text is kept", "none")


def readme(study: Study, folder: Path, every: Sequence[Json]) -> str:
    """The README anew from these results; the author's part stays."""
    path, shown = folder / "README.md", rows(every, {study.name: study})
    heads = [f"{_words([row for row in shown if row.one is one])} ({one['scale']}, {one['hardware']['name']})" for one in every]
    lines = [f"# {study.name}: {'; '.join(heads) or 'not run yet'}", "", f"**Question.** {study.question}", ""]
    lines += [f"**Method.** {study.method.strip()}", ""] if study.method else []
    for one in every:
        lines += _section(one, [row for row in shown if row.one is one])
    lessons = (read_text(path) if path.exists() else "").partition(f"{LEARNT}\n")[2].lstrip("\n") or NOTHING_YET
    return "\n".join([tame("\n".join(lines)), LEARNT, "", lessons.rstrip("\n"), ""])


def _words(some: Sequence[Row]) -> str:
    """`A1.speed refuted, A2 confirmed`; of many claims, how many of each."""
    return counted(some) if len(some) > HEADLINE else ", ".join(f"{row.claim['id']} {row.word}" for row in some)


def _section(results: Json, some: Sequence[Row]) -> list[str]:
    """A scale on a machine."""
    hardware = results["hardware"]
    arms, *trials = tables(results)
    lines = [
        f"## {results['scale']}: {hardware['name']}, {hardware['cores']} cores, torch {hardware['torch']}, {results['date']}",
        "",
        f"```sh\n{one_line(results['command'])}\n```",
        "",
        f"seeds {results['seeds']}; judged at commit {str(results['commit'])[:12]}",
        "",
        *claims(some, CLAIM_HEAD).markdown(),
        "",
        *arms.markdown(),
        "",
    ]
    for table in trials:
        lines += [table.title, "", *table.markdown(), ""]
    return [*lines, *(line.strip() + "  " for line in caveats(results)), ""]
