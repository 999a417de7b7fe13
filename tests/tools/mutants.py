"""Mutants of the judge: each is one small mistake in its source, and the tests of verdicts must fail on it.

`python -m tests.tools.mutants [WORD]`: those of a module, or with this word. Prints who survived; exit code 1
where somebody did. A mutant runs in a fork of a process that has the large libraries loaded. `EQUIVALENT` are
those that no test can tell, with the reason.
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
OF_CLAIMS = ("tests/test_interval.py", "tests/test_verdict.py")
# module → what must fail
TESTS = {"interval": OF_CLAIMS, "verdict": OF_CLAIMS[1:], "compare": ("tests/test_compare.py",)}
MUTANTS: list[tuple[str, str, str]] = [  # module of nocap.judge, what it has, what the mutant has
    # the interval
    ("interval", "1 + CAUTION / math.sqrt(n)", "1 + CAUTION / n"),
    ("interval", "quantile(n - 1, TAIL / share)", "quantile(n - 1, TAIL / 2 / share)"),
    ("interval", "quantile(n - 1, TAIL / share)", "quantile(n, TAIL / share)"),
    ("interval", "share = analysis**2 * comparisons", "share = analysis * comparisons"),
    ("interval", "share = analysis**2 * comparisons", "share = analysis**2"),
    ("interval", "DECLARED_TAIL / share", "DECLARED_TAIL"),
    ("interval", "min(declared.df, CAP)", "declared.df"),
    ("interval", "quantile(df + n - 1, DECLARED_TAIL / share)", "quantile(df, DECLARED_TAIL / share)"),
    ("interval", "np.maximum(sd, declared.sd)", "declared.sd"),
    ("interval", "np.maximum(sd, declared.sd)", "sd"),
    ("interval", ">= CONTRADICTED", ">= 0"),
    ("interval", ">= SAME)", ">= 0)"),
    ("interval", "(sd / declared.sd) ** 2", "sd / declared.sd"),
    (
        "interval",
        "if n < LEAST_PAIRS:\n        return Estimate(mid=mid, low=-math.inf",
        "if n < 2:\n        return Estimate(mid=mid, low=-math.inf",
    ),
    ("interval", "sample.std(ddof=1)", "sample.std()"),
    ("interval", "mid - float(half) - bias", "mid - float(half)"),
    ("interval", "mid + float(half) + bias", "mid + float(half)"),
    ("interval", "WELCH_TAIL / comparisons", "WELCH_TAIL"),
    ("interval", "WELCH_TAIL / comparisons", "0.025 / comparisons"),
    ("interval", "part**2 / freedom", "part**2"),
    ("interval", "math.sqrt(variance) + bias", "math.sqrt(variance)"),
    ("interval", "len(both) >= LEAST_PAIRS or", "both or"),
    ("interval", " or a.keys() == b.keys() else", " else"),
    ("interval", "for group in groups if len(group) > 1", "for group in groups if len(group) > 2"),
    ("interval", "math.sqrt(squares / freedom)", "math.sqrt(squares / len(arrays))"),
    ("interval", "LEAST_PAIRS * 2**k", "LEAST_PAIRS + 3 * k"),
    ("interval", "sum(size <= n for", "sum(size < n for"),
    ("interval", "if size > n and", "if"),
    ("interval", "if size > n and float(half) + bias +", "if size > n and float(half) +"),
    ("interval", "declared=declared, analysis=k)", "declared=declared)"),
    # words
    ("interval", "self.high < low - tie", "self.high < low + tie"),
    ("interval", "self.low > high + tie", "self.low > high - tie"),
    ("interval", "self.low >= low - tie and self.high <= high + tie", "self.low >= low - tie"),
    ("interval", "self.low >= low - tie and self.high <= high + tie", "self.low > low and self.high < high"),
    ("interval", "ROUNDING * max(1.0, abs(self.mid))", "ROUNDING"),
    ("verdict", "guard in (0, 1) for", "guard in (0, 1, 2) for"),
    ("verdict", "    if -1 in guards:\n        return Word.refuted, Reason.guard\n", ""),
    ("verdict", "    if place == -1:\n        return Word.refuted, Reason.below\n", ""),
    ("verdict", "claim.two_sided or not more_is_better", "claim.two_sided"),
    ("verdict", "claim.two_sided or not more_is_better", "not more_is_better"),
    ("verdict", "Word.exceeded if place == 1 else Word.confirmed", "Word.confirmed"),
    ("verdict", "if all(gain.enough for gain in gains)", "if primary.enough"),
    (
        "verdict",
        "(-_scaled(metric, guard.scale, margin), math.inf)",
        "(_scaled(metric, guard.scale, margin), math.inf)",
    ),
    ("verdict", "primary.interval().low > limit + ROUNDING", "primary.interval().mid > limit + ROUNDING"),
    # pairs
    ("verdict", "            break\n", "            continue\n"),
    ("verdict", "whole[: analyses()[size - 1]] if size else whole", "whole"),
    ("verdict", "analysis=self.analysis)", "analysis=1)"),
    ("verdict", "return whole[:1], missing, per", "return whole, missing, per"),
    (
        "verdict",
        "low = -math.inf if -math.inf in self.least or len(set(self.least)) == 1 else",
        "low = -math.inf if -math.inf in self.least else",
    ),
    ("verdict", "high = math.inf if high > -math.inf and len(set(self.most)) == 1 else high", "high = high"),
    ("verdict", "        return -math.inf, -math.inf\n", "        return -math.inf, math.inf\n"),
    (
        "verdict",
        "if metric.better is Better.higher else (baseline.value, arm.value)",
        "if True else (baseline.value, arm.value)",
    ),
    ("verdict", "unit = level if scale is Scale.difference else 1 / level", "unit = level"),
    ("verdict", "None if scale is Scale.value else declared", "declared"),
    ("verdict", "and scale is not Scale.value\n", "\n"),
    ("verdict", "CLOCK_BIAS * (level if scale is Scale.difference else 1)", "CLOCK_BIAS"),
    ("verdict", "wanted - len(self.least)", "wanted"),
    ("verdict", "max(n, wanted.get(gain.per.value, 0))", "n"),
    # comparisons
    ("compare", "{1: up, -1: down}", "{1: up}"),
    ("compare", "if better is Better.higher else (Outcome.worse", "if True else (Outcome.worse"),
    ("compare", "tie=floor", "tie=1.0"),
    ("compare", "declared=pooled(groups), comparisons=len(others)", "declared=pooled(groups)"),
    ("compare", "declared=pooled(groups), comparisons=len(others)", "comparisons=len(others)"),
    ("compare", "other is not arm\n            and ", ""),
    ("compare", "not math.isfinite(estimate.high)", "False"),
    ("compare", "if arm.diverged or base.diverged:", "if base.diverged:"),
    ("compare", "if spoilt := confounders(arm, base, allowed=allow):", "if spoilt := []:"),
    ("compare", "CLOCK_BIAS if METRICS[metric].kind is Kind.clock else 0.0", "0.0"),
    ("compare", "shared(arm.values[metric], base.values[metric]) or arm.seeds", "arm.seeds"),
]
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "interval",
        "if size > n and",
        "if",
    ): "an interval that did not decide is narrower than those of fewer pairs"
}


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module of nocap.judge with its mistake."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.name, self.path = f"nocap.judge.{module}", ROOT / "nocap" / "judge" / f"{module}.py"
        self.source = self.path.read_text().replace(old, new)
        assert old in self.path.read_text(), (module, old)

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.util.spec_from_loader(name, self, origin=str(self.path)) if name == self.name else None
        )

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self.source.encode()

    def path_stats(self, path: str | bytes) -> dict[str, int]:  # type: ignore[override]
        raise OSError("never from a cache of bytecode")


def load_libraries() -> None:
    """Import the tests and forget this project's part of it: the libraries stay, and a fork imports only the
    judge and its tests."""
    for test in (*OF_CLAIMS, *TESTS["compare"]):
        importlib.import_module(test.removesuffix(".py").replace("/", "."))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("nocap", "tests", "simulated")]:
        del sys.modules[name]


def survives(module: str, mutant: tuple[str, str, str] | None = None) -> bool:
    """Whether the module's tests pass on it, in a fork; `None`: on the source as it is."""
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
            # libraries are loaded
            options = (
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
            )
            code = int(
                pytest.main(
                    [
                        *TESTS[module],
                        *options,
                        "-m",
                        "not slow",
                        "-k",
                        "not bar and not pages and not imports_neither",
                    ]
                )
            )
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1, 2), f"pytest ended with {code}"  # 2: a module that cannot be imported
    return code == 0


def main(argv: Sequence[str]) -> int:
    load_libraries()
    chosen = [mutant for mutant in MUTANTS if all(word in (mutant[0], *mutant[1].split()) for word in argv)]
    for module in {mutant[0] for mutant in chosen}:
        assert survives(module), f"the tests of {module} fail without any mutant"
    alive = []
    for mutant in chosen:
        if mutant not in EQUIVALENT and survives(mutant[0], mutant):
            alive.append(mutant)
            print(f"alive: {mutant[0]}: {mutant[1]!r} as {mutant[2]!r}", flush=True)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants died")
    return int(bool(alive))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
