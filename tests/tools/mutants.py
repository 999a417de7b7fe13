"""Mutants of the judge: each is one small mistake in its source, and the tests of verdicts must fail on it.

`python -m tests.tools.mutants [WORD]`: those of a module, or with this word. Prints who survived; exit code 1 where somebody did.
A mutant runs in a fork of a process that has the large libraries loaded. `EQUIVALENT` are those that no test can tell, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
TESTS = ("tests/test_verdict_noise.py", "tests/test_verdict_looks.py", "tests/test_verdict.py")
MUTANTS: list[tuple[str, str, str]] = [  # module of nocap.judge, what it has, what the mutant has
    # alpha and its halves
    ("verdict", "share = claim.alpha / (1 + len(guards))", "share = claim.alpha"),
    ("verdict", "claim.level(look, share), claim.level(look, share / 2)", "claim.level(look, share / 2), claim.level(look, share)"),
    ("verdict", "2 * claim.level(look, claim.alpha / 2)", "claim.level(look, claim.alpha)"),
    ("verdict", "2 * claim.level(look, claim.alpha / 2)", "claim.level(look, claim.alpha / 2)"),
    # words
    ("verdict", "if primary.below(side):", "if primary.above(side):"),
    ("verdict", "    if primary.above(side):\n        return Word.refuted, Reason.exceeded\n", ""),
    ("verdict", "    if failed:\n        return Word.refuted, Reason.guard\n", ""),
    ("verdict", "if all(guard.inside(alpha, ends=guard.ends) for guard in guards):", "if True:"),
    ("verdict", "if primary.inside(alpha, ends=primary.ends):", "if primary.inside(alpha, ends=primary.wide):"),
    ("verdict", "if primary.inside(alpha, ends=primary.wide):", "if primary.inside(alpha, ends=primary.ends):"),
    ("verdict", "if not missing and all(gain.enough", "if all(gain.enough"),
    ("verdict", "missing += self.lacking", "pass"),
    ("verdict", "if word is Word.equivalent and look < len(claim.looks):", "if False:"),
    ("verdict", "gained > top + TIE", "gained < top + TIE"),
    ("verdict", "gained > bound + TIE", "gained > top + TIE"),
    ("verdict", "-_scaled(metric, guard.scale, guard.margin(self.at))", "_scaled(metric, guard.scale, guard.margin(self.at))"),
    # looks
    ("verdict", "found = self.verdict(1)", "found = self.verdict(len(self.claim.looks))"),
    ("verdict", "for look in range(2, len(self.claim.looks) + 1):", "for look in range(2, len(self.claim.looks)):"),
    ("verdict", "if found.word is not Word.inconclusive or found.missing:", "if found.missing:"),
    ("verdict", "found = found if later.missing else later", "found = later"),
    ("verdict", "if look >= n and look > have[per]", "if look > have[per]"),
    ("verdict", "for per, n in more.items() if n > 0}", "for per, n in more.items()}"),
    ("verdict", "n) - have[per]", "n)"),
    ("claim", "self.seeds[: self.pairs_at(look)]", "self.seeds[: self.pairs_at(look) - 1]"),
    ("claim", "self.looks[look - 1]", "self.looks[-look]"),
    ("claim", "levels(tuple(self.looks), alpha)[look - 1]", "levels(tuple(self.looks), alpha)[-1]"),
    ("claim", "levels(tuple(self.looks), alpha)[look - 1]", "alpha"),
    ("claim", "all(a < b for a, b in pairwise(looks))", "all(a <= b for a, b in pairwise(looks))"),
    ("claim", "looks[0] >= LEAST_PAIRS", "looks[0] >= LEAST_PAIRS - 1"),
    ("claim", "low - beyond, None if top is None else top + beyond", "low + beyond, None if top is None else top + beyond"),
    ("claim", "None if top is None else top + beyond", "None if top is None else top - beyond"),
    ("claim", "if slack else 0.0", ""),
    ("sequential", "special.ndtri(alpha / 2)", "special.ndtri(alpha)"),
    ("sequential", "/ math.sqrt(share)))", "/ share))"),
    ("sequential", "spent(alpha, share) - used", "spent(alpha, share)"),
    ("sequential", "step = math.sqrt(share - before)", "step = math.sqrt(share)"),
    ("sequential", "n / counts[-1] for n", "n / counts[0] for n"),
    # noise
    ("noise", "d0 = min(prior.df, cap)", "d0 = prior.df"),
    ("noise", "d0 * prior.sd**2 + df * variance", "d0 * prior.sd + df * variance"),
    ("noise", "/ (d0 + df), d0 + df", "/ (d0 + df), df"),
    ("noise", "np.sqrt(variance / n)", "variance / n"),
    ("noise", "np.sqrt(variance / n)", "np.sqrt(variance)"),
    ("noise", "np.maximum(variance, declared)", "variance"),
    ("noise", "np.where(same, n - 1, df)", "df"),
    ("noise", "np.where(same, own, np.maximum", "np.where(same, np.maximum(variance, declared), np.maximum"),
    ("noise", "(n >= 3) & (own <", "(n >= 2) & (own <"),
    ("noise", "own < (SAME * self.prior.sd) ** 2", "own < SAME * self.prior.sd**2"),
    ("noise", "ddof=1) if n > 1", "ddof=0) if n > 1"),
    ("noise", "1 + CAUTION / math.sqrt(n)", "1 + CAUTION / n"),
    ("noise", "if deciding and self.prior is None", "if self.prior is None"),
    ("noise", "if deciding and self.prior is None", "if deciding"),
    ("noise", "CORRELATED if self.clocked else 1.0", "1.0"),
    ("noise", "self.error(values, deciding=True)", "self.error(values)"),
    ("noise", "* error - self.bias", "* error + self.bias"),
    ("noise", "* error - self.bias", "* error"),
    ("noise", "stdtrit(df, alpha) * error", "stdtrit(df, alpha / 2) * error"),
    ("noise", "stdtrit(df, alpha / 2)) * error + self.bias", "stdtrit(df, alpha / 2)) * error"),
    ("noise", "stdtrit(df, alpha / 2)) * error", "stdtrit(df, alpha)) * error"),
    ("noise", "return n >= (1 if self.prior else least)", "return n >= least"),
    ("noise", "unit = level if scale is Scale.difference else 1 / level", "unit = level"),
    ("noise", "if metric.name in TIMED else 0.0", ""),
    ("noise", "metric.name in TIMED and metric.name not in SHARES", "metric.name not in SHARES"),
    ("noise", " and metric.name not in SHARES", ""),
    ("noise", "scale is Scale.value and metric.name in TIMED", "False"),
    ("noise", "excess <= 0", "excess <= 1e9"),
    ("noise", "- math.log(d0 / 2)) / 2), d0", "+ math.log(d0 / 2)) / 2), d0"),
    ("noise", "special.polygamma(1, half).mean()", "special.polygamma(1, half).max()"),
    ("noise", "effect / wide, n=n, alpha=2 * alpha", "effect / wide, n=n, alpha=alpha"),
    ("noise", "known=df) >= power", "known=0.0) >= power"),
    ("noise", "distance <= self.bias", "distance <= 0"),
    # gains
    ("gain", "self.at_least(alpha) >= low - TIE", "self.at_least(alpha) > low + TIE"),
    ("gain", "self.at_most(alpha) <= high + TIE", "self.at_most(alpha) >= high + TIE"),
    ("gain", "self.at_most(alpha) < self.wide[0] - TIE", "self.at_most(alpha) < self.ends[0] - TIE"),
    ("gain", "self.at_least(alpha) > self.wide[1] + TIE", "self.at_least(alpha) > self.ends[1] + TIE"),
    ("gain", "-math.inf if -math.inf in self.least else", ""),
    ("gain", "share / 2 if gain is gains[0] else share", "share"),
    ("gain", "[min(known, key", "[max(known, key"),
    ("gain", "max(needed, found.get(gain.per, 0))", "needed"),
    ("gain", "max(needed, found.get(gain.per, 0))", "min(needed, found.get(gain.per, needed))"),
]
EQUIVALENT: dict[tuple[str, str, str], str] = {}


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module of nocap.judge with its mistake."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.name, self.path = f"nocap.judge.{module}", ROOT / "nocap" / "judge" / f"{module}.py"
        self.source = self.path.read_text().replace(old, new)
        assert old in self.path.read_text(), (module, old)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self, origin=str(self.path)) if name == self.name else None

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self.source.encode()

    def path_stats(self, path: str | bytes) -> dict[str, int]:  # type: ignore[override]
        raise OSError("never from a cache of bytecode")


def load_libraries() -> None:
    """Import the tests and forget this project's part of it: the libraries stay, and a fork imports only the judge and its tests."""
    for test in TESTS:
        importlib.import_module(test.removesuffix(".py").replace("/", "."))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("nocap", "tests")]:
        del sys.modules[name]


def survives(mutant: tuple[str, str, str] | None) -> bool:
    """Whether the tests pass on it, in a fork; `None`: on the source as it is."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            import pytest

            if mutant is not None:
                sys.meta_path.insert(0, Mutated(*mutant))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            options = ("-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # libraries are loaded
            code = int(pytest.main([*TESTS, *options, "-k", "not one_line and not refusals and not arguments"]))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1, 2), f"pytest ended with {code}"  # 2: a module that cannot be imported
    return code == 0


def main(argv: Sequence[str]) -> int:
    load_libraries()
    assert survives(None), "the tests fail without any mutant"
    chosen = [one for one in MUTANTS if all(word in (one[0], *one[1].split()) for word in argv)]
    alive = []
    for one in chosen:
        if one not in EQUIVALENT and survives(one):
            alive.append(one)
            print(f"alive: {one[0]}: {one[1]!r} as {one[2]!r}", flush=True)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants died")
    return int(bool(alive))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
