"""Two profiles compared through the door: what changed, part by part, and what is refused."""

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from nocap import profile as command
from nocap.measure.bench_arms import compose_arms
from tests.fuzz.process import Answer, answer

Json = dict[str, Any]
HARDWARE = {
    "device": "cpu",
    "name": "EPYC",
    "cpu": "EPYC",
    "cpu_kind": "25.1.1",
    "cores": 2,
    "threads": 1,
    "host": "here",
    "system": "Linux x86_64",
    "torch": "2.13",
    "cuda": None,
    "fingerprint": "89696c6b7cea",
}
WORDS = ["model=nano", "attention=mha", "mlp=gelu4x"]


def row(part: str, ms: float, *, detail: str | None = None) -> Json:
    return {"part": part, "detail": detail, **figures(ms), "of_forward": None, "of_block": None}


def figures(ms: float, *, flops: float = 0, moved: float = 0) -> Json:
    """Return what every sum of rows has."""
    counts = {"calls": 1, "flops": flops, "bytes": moved, "bound_ms": 0.0}
    ways = {"forward_ms": ms, "backward_ms": 0.0}
    return {"ms": ms, **counts, **ways, "share": ms / 100, "flop_s": None, "of_bound": None}


def step(ms: float) -> Json:
    clocks = {"wall_ms": ms, "cpu_ms": ms, "gpu_busy": None}
    return {
        "ms": ms,
        "attributed_ms": ms,
        "unattributed_ms": 0.0,
        "profiler": 1.0,
        "microbatches": 1,
        "measured_microbatches": 1,
        "plain": clocks,
        "profiled": clocks,
        "compiled": None,
        "compile": "off",
        "cuda_graphs": False,
    }


HELD = {"parameters": 1.0, "gradients": 1.0, "optimizer": 2.0, "activations": 3.0, "kept": {}}


def profile(**changed: Any) -> Json:
    """A step of 100 ms: attention 60 (QKV 10, scores 20, softmax 25, weights·values 5), MLP 30,
    head 5."""
    groups = {
        "attention": [
            row("qkv", 10.0),
            row("scores", 20.0, detail="product"),
            row("scores", 25.0, detail="softmax"),
            row("scores", 5.0, detail="values"),
        ],
        "mlp": [row("mlp_up", 18.0), row("mlp_down", 12.0)],
        "head": [row("head", 5.0)],
    }
    content = {
        "schema_version": 1,
        "kind": "profile",
        "of": "step",
        "date": "2026-11-29",
        "words": WORDS,
        "config_dirs": [],
        "config": {
            "trainer": {"precision": "fp32", "threads": 1},
            "attention": {"kernel": "materialized"},
            "output_dir": "outputs",
        },
        "vocab_size": 257,
        "tokens": 1024,
        "flops_per_token": 8e5,
        "flops_basis": "arithmetic",
        "not_counted": None,
        "trusted": True,
        "doubts": {"core": 1.0, "peak": 0.5},
        "clock": "process CPU time",
        "kernel": "materialized",
        "step": step(100.0),
        "roof": {"flops": {"fp32": 8e10}, "bytes_per_s": 2e10},
        "hardware": HARDWARE,
        "groups": summed(groups),
        "parts": [
            {"part": "qkv", **figures(10.0, flops=4e8, moved=2e6)},
            {"part": "head", **figures(5.0, flops=4e8, moved=1e6)},
        ],
        "layers": [],
        "rows": [],
        "memory_mib": {"measured": HELD, "cache": 0.0},
        "largest": [],
        "text": None,
    }
    return {**content, **changed}


def summed(groups: dict[str, list[Json]]) -> list[Json]:
    found = list[Json]()
    for name, rows in groups.items():
        ms = sum(each["ms"] for each in rows)
        found.append(group(name, ms, rows))
    return found


def group(name: str, ms: float, rows: list[Json]) -> Json:
    return {"group": name, **figures(ms), "of_forward": None, "of_block": None, "parts": rows}


def flash(**changed: Any) -> Json:
    """The same with a fused kernel of 20 ms, and a slower head."""
    groups = {
        "attention": [
            row("qkv", 10.0),
            row("scores", 18.0, detail="fused"),
            row("scores", 2.0, detail="around"),
        ],
        "mlp": [row("mlp_up", 18.0), row("mlp_down", 12.0)],
        "head": [row("head", 8.0)],
    }
    config = {
        "trainer": {"precision": "fp32", "threads": 1},
        "attention": {"kernel": "fused"},
        "output_dir": "elsewhere",
    }
    words = ["model=nano", "attention=flash", "mlp=gelu4x"]
    own = {
        "words": words,
        "config": config,
        "kernel": "flash",
        "groups": summed(groups),
        "step": step(70.0),
    }
    return profile(**{**own, **changed})


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write two profiles, and compare them at the door."""
    monkeypatch.chdir(tmp_path)

    def call(before: Json, after: Json, *words: str) -> Answer:
        for name, content in (("a.json", before), ("b.json", after)):
            Path(name).write_text(json.dumps(content))
        return answer(lambda: command.main(["a.json", "b.json", *words]))

    return call


def refused(done: Answer, *says: str, lines: int = 1) -> None:
    said = done.err.splitlines()
    assert done.code == 2, done
    assert done.crash is None, done
    assert len(said) == lines, done
    for text in says:
        assert text in done.err, done.err
    assert done.out == ""


def test_what_changed_is_told_with_the_largest_change_first(compared: Any) -> None:
    done = compared(profile(), flash(), "--json", "d.json")
    assert done.code == 0, done
    assert done.crash is None, done
    text = Path("d.json").read_text()
    (difference,) = json.loads(text)["differences"].values()
    assert difference["of"] == "step"
    assert difference["ratio"] == pytest.approx(0.7)
    groups = [row["group"] for row in difference["groups"]]
    assert groups == ["attention", "head", "mlp"]
    first, second, *unchanged = difference["rows"]
    # the kernels differ: their moments are compared together
    assert first["part"] == "scores"
    assert first["detail"] is None
    assert first["before_ms"] == 50.0
    assert first["after_ms"] == 20.0
    assert first["ms"] == -30.0
    assert first["ratio"] == pytest.approx(0.4)
    assert first["before_share"] == pytest.approx(0.5)
    assert first["after_share"] == pytest.approx(0.2)
    assert second["part"] == "head"
    assert second["ms"] == 3.0
    ms = {row["ms"] for row in unchanged}
    assert ms == {0.0}
    expected = [{"key": "attention.kernel", "before": "materialized", "after": "fused"}]
    assert difference["config"] == expected
    assert "config: attention.kernel materialized → fused" in done.out.splitlines()
    assert (
        "A: a.json, 100 ms a step, attention materialized: model=nano attention=mha mlp=gelu4x"
        in done.out
    )
    assert "B: b.json, 70.0 ms a step, 0.70× the time of A, attention flash" in done.out
    lines = done.out.splitlines()
    (scores,) = [line for line in lines if line.startswith("attention: scores")]
    words = scores.split()[-6:]
    assert words == ["50.0", "20.0", "−30.0", "0.40×", "50.0%", "20.0%"]


def test_moments_that_both_have_are_compared_one_by_one(compared: Any) -> None:
    after = profile()
    after["groups"][0]["parts"][2]["ms"] = 15.0
    compared(profile(), after, "--json", "d.json")
    text = Path("d.json").read_text()
    (difference,) = json.loads(text)["differences"].values()
    first = difference["rows"][0]
    assert first["part"] == "scores"
    assert first["detail"] == "softmax"
    assert first["ms"] == -10.0
    rows = [row for row in difference["rows"] if row["part"] == "scores"]
    assert len(rows) == 3


def test_a_part_that_one_of_them_lacks_is_a_dash(compared: Any) -> None:
    after = profile()
    ideas = group("ideas", 4.0, [row("ideas", 4.0)])
    after["groups"].append(ideas)
    done = compared(profile(), after, "--json", "d.json")
    text = Path("d.json").read_text()
    (difference,) = json.loads(text)["differences"].values()
    first = difference["rows"][0]
    assert first["part"] == "ideas"
    assert first["before_ms"] is None
    assert first["after_ms"] == 4.0
    assert first["ratio"] is None
    lines = done.out.splitlines()
    (line,) = [line for line in lines if line.startswith("ideas")][-1:]
    expected = ["ideas", "–", "4.00", "+4.00", "–", "–", "4.0%"]
    assert line.split() == expected


def test_steps_of_other_sizes_have_a_ratio_of_a_token(compared: Any) -> None:
    later = profile(tokens=2048, step=step(150.0))
    done = compared(profile(), later, "--json", "d.json")
    text = Path("d.json").read_text()
    (difference,) = json.loads(text)["differences"].values()
    assert difference["ratio_per_token"] == pytest.approx(0.75)
    assert (
        "A has 1,024 tokens and B has 2,048; for one token, B takes 0.75× the time of A" in done.out
    )


def test_it_says_that_it_has_no_interval_and_what_has_one(compared: Any) -> None:
    """The command's arms are the two profiles'; what the machine itself did between them is
    told."""
    roof = {"flops": {"fp32": 6e10}, "bytes_per_s": 2e10}
    done = compared(profile(), flash(roof=roof, trusted=False))
    assert "without an interval" in done.out
    assert "peaks also changed from A to B: fp32 0.75×, copy 1.00×" in done.out
    assert "; do not trust this profile, because the machine was busy" in done.out
    last = done.out.splitlines()[-1].removeprefix(
        "this command measures the difference with an interval: "
    )
    python, flag, module, *arguments = shlex.split(last)
    assert python == "python"
    assert flag == "-m"
    assert module == "nocap.bench"
    assert arguments[:2] == ["model=nano", "mlp=gelu4x"]
    arms = compose_arms(arguments[:2], [arguments[3], arguments[5]])
    assert list(arms) == ["attention=mha", "attention=flash"]
    same = compared(profile(), profile())
    assert "both have the same overrides" in same.out.splitlines()[-1]


def test_both_parts_of_a_text_are_compared(compared: Any) -> None:
    text = {"prompt": 8, "texts": 1, "cached": True}
    one = profile(of="prefill", tokens=8, text=text)
    other = profile(of="token", tokens=1, text=text)
    whole = {"kind": "profile", "of": "generate", "prefill": one, "token": other}
    changed = copy.deepcopy(whole)
    changed["token"] |= {"step": step(50.0), "text": {**text, "cached": False}}
    done = compared(whole, changed, "--json", "d.json")
    assert done.code == 0, done
    assert done.crash is None, done
    differences = json.loads(Path("d.json").read_text())["differences"]
    expected = [("prefill", 1.0), ("token", 0.5)]
    ratios = [(name, each["ratio"]) for name, each in differences.items()]
    assert ratios == expected
    assert "config: cached true → false" in done.out.splitlines()
    refused(
        compared(profile(), whole),
        "must be profiles of the same kind, got step, and prefill and decoded token",
    )


# --- refusals -------------------------------------------------------------------------------------


OTHER_MEASUREMENTS = [
    (
        {"hardware": {**HARDWARE, "host": "there"}},
        "the same machine, got EPYC (25.1.1) on here and EPYC",
    ),
    ({"hardware": {**HARDWARE, "name": "Xeon"}}, "the same machine"),
    ({"hardware": {**HARDWARE, "device": "cuda"}}, "the same device, got cpu and cuda"),
    ({"hardware": {**HARDWARE, "threads": 2}}, "the same trainer.threads, got 1 and 2"),
    (
        {"config": {"trainer": {"precision": "bf16"}}},
        "the same trainer.precision, got fp32 and bf16",
    ),
]


@pytest.mark.parametrize(("changed", "said"), OTHER_MEASUREMENTS)
def test_times_that_do_not_compare_are_refused_with_what_does(
    compared: Any, changed: Json, said: str
) -> None:
    """FLOPs and tokens do; bytes where the precision is the same."""
    done = compared(profile(), flash(flops_per_token=6e5, **changed))
    refused(done, said, "their times cannot be compared", lines=2)
    counted = done.err.splitlines()[1]
    assert "the counts of both sides: FLOPs a token 800,000 and 600,000 (0.750×)" in counted
    assert ("bytes moved" in counted) == ("hardware" in changed)


def test_another_torch_is_a_change_of_the_config(compared: Any) -> None:
    hardware = {**HARDWARE, "torch": "2.14"}
    done = compared(profile(), profile(hardware=hardware))
    assert done.code == 0
    assert "config: torch 2.13 → 2.14" in done.out.splitlines()


KEYS = [
    "of",
    "words",
    "config",
    "tokens",
    "trusted",
    "kernel",
    "step",
    "roof",
    "hardware",
    "groups",
    "parts",
]


@pytest.mark.parametrize("key", [*KEYS, "config_dirs"])
def test_a_damaged_profile_is_refused_in_a_line(compared: Any, key: str) -> None:
    without = {name: value for name, value in profile().items() if name != key}
    refused(compared(profile(), without), "b.json")
    wrong: list[object] = [7.5, [[]], {"ms": []}, None]
    for value in wrong:
        comparison = compared(profile(), profile(**{key: value}))
        refused(comparison, "b.json")


def test_a_strangers_text_cannot_steer_the_terminal(compared: Any) -> None:
    """Nor the command that is shown: it is one word of it."""
    strange = "\x1b[31m$(rm a.json)"
    after = profile(words=[strange], kernel=strange, config_dirs=[strange])
    own_group = group(strange, 4.0, [row(strange, 4.0)])
    after["groups"].append(own_group)
    done = compared(profile(), after)
    assert done.code == 0, done
    assert done.crash is None, done
    assert "\x1b" not in done.out
    typed = shlex.split(done.out.splitlines()[-1])
    cut = [word for word in typed if word == "$(rm" or word.startswith("a.json")]
    assert cut == []
    words = [word for word in typed if "$(rm a.json)" in word]
    assert len(words) == 2  # a folder, and an arm


NO_PROFILES = [
    ({"kind": "bench"}, "be a file that nocap.profile --json wrote, got kind 'bench'"),
    ({"of": "everything"}, "Invalid enum value 'everything' - at `$.of`"),
    ({"tokens": 0}, "`$.tokens`"),
    ({"step": step(0.0)}, "Expected `float` > 0.0 - at `$.step.ms`"),
    ({"step": {**step(1.0), "ms": None}}, "Expected `float`, got `null` - at `$.step.ms`"),
    ({"step": {"ms": 1.0}}, "missing required field `attributed_ms` - at `$.step`"),
    ({"roof": {"flops": {"fp32": -1.0}, "bytes_per_s": 1.0}}, "> 0.0 - at `$.roof.flops[...]`"),
    ({"groups": [group("mlp", -1.0, [])]}, "Expected `float` >= 0.0 - at `$.groups[0].ms`"),
    ({"config": {}}, "config must have trainer.precision, got none"),
    ({"schema_version": 99}, "schema_version must be at most"),
    ({"of": "generate"}, "missing required field `prefill`"),
]


@pytest.mark.parametrize(("changed", "said"), NO_PROFILES)
def test_what_is_no_profile_is_refused_in_a_line(compared: Any, changed: Json, said: str) -> None:
    comparison = compared(profile(), profile(**changed))
    refused(comparison, said)


def test_an_older_nocaps_profile_is_refused_by_what_it_lacks(compared: Any) -> None:
    old = {key: value for key, value in profile().items() if key not in ("of", "groups")}
    refused(
        compared(old, profile()),
        "a.json must have subtotals (measure the profile again), got a profile of an older nocap",
    )


OTHER_WORDS = [
    (["a.json"], "the arguments must be two files to compare, or key=value overrides, got "),
    (["a.json", "b.json", "c.json"], "the arguments must be two files to compare"),
    (
        ["a.json", "b.json", "attention=gqa"],
        "attention=gqa does not work with two files to compare",
    ),
    (
        ["a.json", "b.json", "--repeats", "1"],
        "--repeats does not work with two files to compare",
    ),
    (["a.json", "b.json", "--forward"], "--forward does not work with two files to compare"),
    (
        ["a.json", "nothing.json"],
        "nothing.json must be a file that nocap.profile --json wrote, got no file",
    ),
    (["a.json", "torn.json"], "torn.json must hold a JSON object"),
    (["a.json", "list.json"], "list.json must hold a JSON object, got list"),
    (["a.json", "nan.json"], "numbers must be finite, got NaN"),
    (["a.json", "."], "must be a regular file"),
]


@pytest.mark.parametrize(("words", "said"), OTHER_WORDS)
def test_other_words_are_refused_in_a_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = json.dumps(profile())
    for name in ("a.json", "b.json", "c.json"):
        Path(name).write_text(whole)
    Path("torn.json").write_text(whole[:100])
    Path("list.json").write_text("[]")
    Path("nan.json").write_text(whole.replace("100.0", "NaN"))
    refused(answer(lambda: command.main(words)), said)


# --- measured -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_real_profiles_are_compared(door: Any, tmp_path: Path) -> None:
    """Through the door, as a user does it: the parts that changed are those of the option that
    did."""
    shape = ["model=nano", "model.seq_len=256", "trainer.device=cpu", "trainer.precision=fp32"]
    for name in ("mha", "flash"):
        flags = ["--repeats", "1", "--json", f"{name}.json"]
        done = door(*shape, f"attention={name}", *flags, module="nocap.profile")
        assert done.code == 0, done.err
    done = door("mha.json", "flash.json", "--json", "d.json", module="nocap.profile")
    assert done.code == 0, done.err
    text = (tmp_path / "d.json").read_text()
    (difference,) = json.loads(text)["differences"].values()
    keys = {row["key"] for row in difference["config"]}
    assert keys == {"attention.kernel"}
    (scores,) = [row for row in difference["rows"] if row["part"] == "scores"]
    sides = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("mha", "flash")]
    ms = []
    for side in sides:
        scores_ms = next(row["ms"] for row in side["parts"] if row["part"] == "scores")
        ms.append(scores_ms)
    assert [scores["before_ms"], scores["after_ms"]] == pytest.approx(ms)
    whole = sum(row["ms"] for row in difference["groups"])
    attributed = [side["step"]["attributed_ms"] for side in sides]
    assert whole == pytest.approx(attributed[1] - attributed[0])
