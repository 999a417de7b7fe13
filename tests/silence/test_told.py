"""What users were told that was not so: a test for each.

They go through commands only. A test that cannot make its set-up raises `BrokenError`.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import EXPLODING, REPO, SMALL, Door, Finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TINY = (*SMALL, "trainer.steps=4", "trainer.val_every=2")
SOFTCAP = REPO / "tests" / "own_ideas" / "softcap" / "attention"


class BrokenError(Exception):
    """The test's own set-up does not work."""


def made(done: Finished, *, code: int = 0, says: str = "") -> Finished:
    """A command that the set-up needs, which ended as it must."""
    if done.code != code or says not in done.out:
        raise BrokenError(f"exit code {done.code} for {code}, without {says!r}:\n{done.out}\n{done.err}")
    return done


def refused(done: Finished, *words: str) -> bool:
    """In a line or two that have these words."""
    return done.code == 2 and len(done.err.splitlines()) <= 2 and all(word in done.err for word in words)


def edited(text: str, *changes: tuple[str, str]) -> str:
    """A text in which each of these stood."""
    for old, new in changes:
        if old not in text:
            raise BrokenError(f"no {old!r} in {text}")
        text = text.replace(old, new)
    return text


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_of(outputs: Path, option: str, seed: int) -> Path:
    folders = [
        path
        for path in (outputs / "runs").iterdir()
        if f"-{option}-" in path.name and f"-s{seed}-" in path.name
    ]
    if len(folders) != 1:
        raise BrokenError(f"{option}, seed {seed}: {folders}")
    return folders[0]


def cells(text: str, label: str, column: str) -> list[str]:
    """The row of this label in each table that has such a column, as one dict's values: heading → cell."""
    rows, heading = [], list[str]()
    for line in text.splitlines():
        row = re.split(r" {2,}", line.strip())
        if row[0] == "arm":
            heading = row
        elif row[0] == label and column in heading:
            rows.append(row[heading.index(column)])
    return rows


# --- 3: records that were changed ---------------------------------------------------------------------------


def change_rows(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [{**row, "val/loss": 1.2345} if "val/loss" in row else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))


def change_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "val_loss": 1.2345}, indent=2))


def change_config(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["mlp"]["activation"] = "relu2"
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def change_manifest(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "identity": "0" * 12}, indent=2))


STUDY: dict[str, Any] = {
    "question": "Is it lower?",
    "baseline": "flash",
    "overrides": list(TINY),
    "arms": {"flash": ["attention=flash"], "mqa": ["attention=mqa"]},
    "seeds": [0, 1, 2],
    "scales": {
        "cpu": {
            "train": ["trainer.val_every=2"],
            "bench": ["trainer.val_every=2"],
            "rounds": 1,
            "apart_min": 0,
        }
    },
    "claims": [
        {
            "id": "T.loss",
            "statement": "it ends lower",
            "source": "a test",
            "arm": "mqa",
            "metric": "val_loss",
            "scale": "difference",
            "expected": [-10, 10],
            "mechanism": {"rule": "given", "formula": "none", "bound": None},
        }
    ],
}


def study(folder: Path, text: str | None = None) -> Path:
    return written(
        folder / "study.yaml", yaml.safe_dump(STUDY, sort_keys=False) if text is None else text
    ).parent


def test_a_changed_record_is_named_as_damaged_and_left_out(here: Door, tmp_path: Path) -> None:
    grid = (*TINY, "attention=flash,mqa", "seed=0,1,2", "--multirun")
    made(here(*grid))
    outputs, clean = tmp_path / "outputs", tmp_path / "clean"
    study(tmp_path / "mine")
    changed, other = run_of(outputs, "mqa", 1), run_of(outputs, "flash", 1)
    outputs.rename(clean)
    show, judge = ("show", str(changed)), ("mine", "scale=cpu", "--judge")
    doors: list[tuple[Callable[[Path], None], str, tuple[str, ...]]] = [
        (change_rows, "nocap.plot", (str(changed), str(other))),
        (change_rows, "nocap.study", judge),
        (change_summary, "nocap.runs", show),
        (change_summary, "nocap.runs", ("val_loss<2",)),
        (change_summary, "nocap.study", judge),
        (change_config, "nocap.runs", show),
        (change_config, "nocap.runs", ("mlp.activation=relu2",)),
        (change_config, "nocap.plot", (str(changed), str(other))),
    ]
    wrong = []
    for change, module, words in doors:
        shutil.copytree(clean, outputs)
        change(changed)
        done = here(*words, module=module)
        text = done.out + done.err
        if words == judge:
            ok = "damaged" in text and "missing" not in text
        else:
            ok = changed.name in text and re.search("damaged|digest|not believed|left out", text)
        if not ok or "1.234" in done.out:
            wrong.append(f"{change.__name__}: {module} {' '.join(words)}")
        shutil.rmtree(outputs)

    shutil.copytree(clean, outputs)
    change_manifest(changed)
    gone = run_of(outputs, "flash", 2)
    shutil.rmtree(gone)
    again = here(*grid)
    if not (gone / "summary.json").exists() or again.code == 2 or changed.name not in again.out + again.err:
        wrong.append("a grid stops at a damaged cell")
    assert wrong == []


# --- 5: keys without effect ---------------------------------------------------------------------------------

PLAIN = """
from dataclasses import dataclass
from torch import nn
from nocap.options.model import Model

class Block(nn.Module):
    def __init__(self, run, layer):
        super().__init__()
        self.norm, self.mlp = run.norm.build(run.model.d_model), run.mlp.build(run.model.d_model)
        self.attention = run.attention.build(run, layer)

    def forward(self, x_BTC, context):
        h_BTC = self.norm(x_BTC)
        return x_BTC + self.attention(h_BTC, context) + self.mlp(h_BTC)

@dataclass(kw_only=True)
class Plain(Model):
    kind: str = "plain"

    def build_block(self, run, layer):
        return Block(run, layer)
"""


def test_a_key_that_changes_nothing_is_refused(here: Door, tmp_path: Path) -> None:
    made(here("model", "template", module="nocap.new"))
    written(tmp_path / "plain/model/plain.py", PLAIN)
    shape = "n_layer: 2\nn_head: 4\nd_model: 64\nseq_len: 128\n"
    written(tmp_path / "plain/model/plain.yaml", f"kind: plain\n{shape}")

    def train(name: str, out: str, *words: str) -> Finished:
        given = [word for word in TINY if word != "model=nano"]
        return here("--config-dir", name, *given, f"model={name}", f"output_dir={out}", *words)

    def losses(out: str) -> list[object]:
        (run,) = (tmp_path / out / "runs").iterdir()
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [row.get("val/loss") for row in rows]

    wrong = []
    for name in ("template", "plain"):
        made(train(name, f"{name}-as-it-is"))
        for word in (
            "model.norm_placement=post",
            "model.residual_scale=none",
            "trainer.activation_checkpointing=block",
        ):
            key, out = word.partition("=")[0], f"{name}-{word}"
            done = train(name, f"'{out}'", word)
            has_effect = (
                done.code == 0 and key.startswith("model.") and losses(out) != losses(f"{name}-as-it-is")
            )
            if not refused(done, key) and not has_effect:
                wrong.append(f"{name}: {word}")
    assert wrong == []


# --- 8: verdicts --------------------------------------------------------------------------------------------


def test_a_table_says_no_more_than_was_measured(here: Door, tmp_path: Path) -> None:
    def grid(out: str, *words: str, base: tuple[str, ...] = TINY) -> None:
        made(here(*base, *words, f"output_dir={out}", "--multirun"))

    def compared(*words: str) -> Finished:
        return here(*words, module="nocap.compare")

    def of(out: str, arm: str, *seeds: int) -> list[str]:
        return [str(run_of(tmp_path / out, arm, seed)) for seed in seeds]

    wrong = []
    grid("rates", "optimizer.lr=3e-3,2.999995e-3", "seed=0,1,2")  # 3e-7 nats apart, each seed
    made(compared("rates", "--json", "rates.json"), says="the same ± 0.0000")
    verdicts = re.findall(r'"verdict": "(better|worse)"', (tmp_path / "rates.json").read_text())
    if verdicts:
        wrong.append(f"{verdicts[0]} where the difference is below rounding")

    grid("out", "attention=flash,mqa", "seed=0,1,2")
    two = made(
        compared(
            *of("out", "flash", 0, 1), *of("out", "mqa", 0, 1), "--html", "two.html", "--json", "two.json"
        ),
        says="n=2",
    )
    for place, text in {
        "": two.out,
        **{name: (tmp_path / name).read_text() for name in ("two.html", "two.json")},
    }.items():
        if re.search(r"\d% (faster|slower)", text):
            wrong.append(f"a bare percentage of speed with two seeds {place}")
        if re.search(r"\d{3,}(\.\d+)?× as fast", text):
            wrong.append(f"hundreds of times as fast with two seeds {place}")

    for few, many in (((0,), (0, 1, 2)), ((0, 1), (0, 1, 2))):  # seeds of the baseline, and of the arm
        baseline = of("out", "flash", *few)
        texts = [made(compared(*baseline, *of("out", "mqa", *seeds))).out for seeds in (few, many)]
        for of_mean, of_ratio in (("mean tokens/s", "speed"), ("val loss", "difference")):
            means, ratios = ([cells(text, "mqa", column) for text in texts] for column in (of_mean, of_ratio))
            if any(len(column) != 1 for column in (*means, *ratios)):
                raise BrokenError(f"no row of mqa with {of_mean} and {of_ratio}:\n" + "\n".join(texts))
            if re.search(r"\d", ratios[0][0]) and ratios[0] == ratios[1] and means[0] != means[1]:
                wrong.append(f"{of_mean} of seeds {many} beside {of_ratio} of seeds {few}")

    grid("out", *EXPLODING, "schedule=exploding", "seed=0,1,2")
    tables = [
        re.split(r" {2,}", line.strip()) for line in made(compared("out", *EXPLODING[:2])).out.splitlines()
    ]
    diverged = [
        row[0]
        for row in tables
        if len(row) > 2 and "exploding" in row[0] and any("diverged" in cell for cell in row[1:])
    ]
    if not diverged or "nano" in diverged[0]:  # the name of all its options
        wrong.append("a diverged arm has no row that what sets it apart names")

    derived = [
        word
        for word in TINY
        if not word.startswith(("trainer.steps", "trainer.val_every", "trainer.checkpoint_every"))
    ]
    grid("steps", "trainer.steps=20,16", base=tuple(derived))
    if re.search(
        r"^steps=\d+ (warmup|decay)_steps", made(compared("steps"), says="steps=20").out, re.MULTILINE
    ):
        wrong.append("a label holds keys that nobody gave")

    if not refused(compared("out", "--target", "99"), "--target"):
        wrong.append("a target that is met before the first step is taken")
    assert wrong == []


# --- 10: repeated keys --------------------------------------------------------------------------------------


def test_a_repeated_key_is_refused(here: Door, tmp_path: Path) -> None:
    def judged(folder: Path) -> Finished:
        return here(str(folder), "scale=cpu", "--judge", module="nocap.study")

    text = yaml.safe_dump(STUDY, sort_keys=False, default_flow_style=None)
    made(judged(study(tmp_path / "sound", text)), code=1)  # nothing is there to judge
    lines = {
        "seeds": ("seeds: [0, 1, 2]", "seeds: [3, 4, 5]\nseeds: [0, 1, 2]"),
        "expected": ("  expected: [-10, 10]", "  expected: [1, null]\n  expected: [-10, 10]"),
        "rounds": ("    rounds: 1", "    rounds: 3\n    rounds: 1"),
        "mqa": ("  mqa: [attention=mqa]", "  mqa: [attention=gqa]\n  mqa: [attention=mqa]"),
    }
    wrong = []
    for key, change in lines.items():
        if not refused(judged(study(tmp_path / key, edited(text, change))), key):
            wrong.append(f"study.yaml: {key}")
    shutil.copytree(SOFTCAP, tmp_path / "option/attention")
    with (tmp_path / "option/attention/softcap.yaml").open("a") as file:
        file.write("cap: 30\n")
    if not refused(here("--config-dir", "option", *TINY, "attention=softcap"), "cap"):
        wrong.append("an option's yaml")
    assert wrong == []


# --- 11: registrations --------------------------------------------------------------------------------------


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    """As on a machine of this name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: name)
        yield


def test_a_claim_that_was_fitted_to_its_result_is_not_confirmed(here: Door, tmp_path: Path) -> None:
    """Each way ends refused, in another word than confirmed, or labelled exploratory; and a verdict of
    another machine is shown."""
    loose = yaml.safe_dump({**STUDY, "seeds": [0, 1, 2, 3]}, sort_keys=False, default_flow_style=None)
    strict = edited(loose, ("expected: [-10, 10]", "expected: [1, null]"))

    def carry(
        root: str, *words: str, name: str = "mine", host: str = "first", scale: str = "cpu"
    ) -> Finished:
        with on_machine(host):
            return here(f"{root}/{name}", f"scale={scale}", *words, module="nocap.study")

    def fitted(done: Finished, claim: str = "T.loss") -> bool:
        """Whether it was confirmed without a label."""
        if done.code not in (0, 1, 2):
            raise BrokenError(done.err)
        told = [block for block in done.out.split("\n\n") if block.startswith(f"{claim} confirmed")]
        return bool(told) and not any("exploratory" in block for block in told)

    def root(way: str, text: str) -> str:
        """A copy of the studies, as they were after the refutation, with another study.yaml; a fresh
        output_dir with old baselines."""
        shutil.copytree(tmp_path / "studies", tmp_path / way)
        study(tmp_path / way / "mine", text)
        (tmp_path / f"{way}-out" / "runs").mkdir(parents=True)
        for run in (tmp_path / "outputs" / "runs").glob("*-flash-*"):
            shutil.copytree(run, tmp_path / f"{way}-out" / "runs" / run.name)
        return way

    study(tmp_path / "studies/mine", strict)
    made(carry("studies"), says="refuted")
    wrong = []

    renamed = root("scale", edited(loose, ("  cpu:", "  laptop:")))
    if fitted(carry(renamed, "output_dir=scale-out", scale="laptop")):
        wrong.append("another name of the scale, looser ends, a fresh output_dir")

    renamed = root("names", edited(loose, ("mqa:", "few:"), ("arm: mqa", "arm: few"), ("T.loss", "U.loss")))
    if fitted(carry(renamed, "output_dir=names-out"), "U.loss"):
        wrong.append("other names of the arm and the claim, looser ends")

    beside = root("beside", strict)
    study(tmp_path / beside / "theirs", edited(loose, ("seeds: [0, 1, 2, 3]", "seeds: [0, 2, 3]")))
    if fitted(carry(beside, "output_dir=beside-out", name="theirs")):
        wrong.append("seeds whose runs a study beside this one has, the worst left out")

    study(tmp_path / "elsewhere/mine", loose)
    made(carry("elsewhere", host="second"))
    (log,) = (tmp_path / "elsewhere/mine").glob("*.jsonl")
    line = next(line for line in log.read_text().splitlines() if "registration" in line)
    backdated = root("backdated", loose)
    (log,) = (tmp_path / backdated / "mine").glob("*.jsonl")
    log.write_text(re.sub(r"\d{4}-\d\d-\d\d", "2020-01-01", line) + "\n" + log.read_text())
    if fitted(carry(backdated)):
        wrong.append("a registration of 2020 with another machine's name, put in at the top")

    said = made(carry(root("second", strict), host="second"), says="refuted")
    (first,) = {
        json.loads(path.read_text())["hardware"]["fingerprint"]
        for path in (tmp_path / "studies/mine").glob("results.*.json")
    }
    if not re.search(rf"{first}|other machine", said.out):
        wrong.append("what another machine said of the same claim is not shown")

    losses = [
        json.loads((run_of(tmp_path / "outputs", "mqa", seed) / "summary.json").read_text())["val_loss"]
        for seed in range(3)
    ]  # three pairs decide

    def forged(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: forged(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [forged(value) for value in tree]
        if isinstance(tree, float) and tree in losses:
            return tree - 2
        return {"refuted": "confirmed", "below": None}.get(tree, tree) if isinstance(tree, str) else tree

    board = root("board", strict)
    (results,) = (tmp_path / board / "mine").glob("results.*.json")
    results.write_text(json.dumps(forged(json.loads(results.read_text()))))
    done = here("--board", board, module="nocap.study")
    page = (
        [line for line in (tmp_path / board / "README.md").read_text().splitlines() if "T.loss" in line]
        if done.code == 0
        else []
    )
    if any("confirmed" in line for line in page):
        wrong.append("results.json is edited, and the board prints it")
    assert wrong == []


# --- 15: nocap check ----------------------------------------------------------------------------------------

NEEDY = """
from dataclasses import dataclass
import torch
from nocap.config.keys import require
from nocap.options.attention import Attention

@dataclass(kw_only=True)
class A(Attention):
    kind: str = "needy"

    def check(self, run):
        super().check(run)
        require("helper" in run.ideas, "attention", "have the idea helper beside it", "none")

    def mixer(self, run, layer):
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


def test_nocap_check_takes_companions_and_says_where(here: Door, tmp_path: Path) -> None:
    written(tmp_path / "needy/attention/needy.py", NEEDY)
    written(tmp_path / "needy/attention/needy.yaml", "kind: needy\nn_kv_heads: ${model.n_head}\n")
    made(here("ideas", "helper", module="nocap.new"))
    shutil.copytree(tmp_path / "helper/ideas", tmp_path / "both/ideas")
    shutil.copytree(tmp_path / "needy/attention", tmp_path / "both/attention")
    dirs = ("--config-dir", "needy", "--config-dir", "helper")
    needy = (*dirs, *TINY, "attention=needy", "ideas=[helper]")
    made(here(*needy, "--cfg", "job"))

    def check(*words: str) -> Finished:
        return here(*words, module="nocap.check")

    wrong = []
    if check("both", "ideas=[helper]", "--only", "learns").code != 0:
        wrong.append("an idea beside an attention of the same folder")
    if check("needy", "--config-dir", "helper", "ideas=[helper]", "--only", "learns").code != 0:
        wrong.append("an idea from another folder")
    if check("helper", "ideas=[smear]", "--only", "learns").code != 0:
        wrong.append("an idea beside an idea")
    if here(*needy).code != 0:
        wrong.append("a check that needs an idea is run again without it")

    made(here("schedule", "separates", module="nocap.new"))
    names = set(
        re.findall(r"schedule=separates (\w+)", check("separates", "--only", "rates", "trainer.steps=3").out)
    )
    if names != {"rates"}:
        wrong.append(f"--only rates runs {', '.join(sorted(names))}")

    shutil.copytree(SOFTCAP, tmp_path / "raises/attention")
    file = tmp_path / "raises/attention/softcap.py"
    text = file.read_text()
    line = "            groups, (T, D) ="
    file.write_text(edited(text, (line, f"            raise RuntimeError('never')\n{line}")))
    failed = made(check("raises", "--only", "learns"), code=1)
    logs = [Path(path) for path in re.findall(r"(/\S+\.(?:log|err|out))\b", failed.out + failed.err)]
    if not logs or not all(path.is_file() for path in logs):
        wrong.append("the log of a failed check is not there")

    file.write_text(text.replace('"""\n', '"""\n\n1 / 0\n', 1))
    number = next(i for i, line in enumerate(file.read_text().splitlines(), start=1) if line == "1 / 0")
    done = here("--config-dir", "raises", *TINY, "attention=softcap")
    if not (refused(done, str(file)) and re.search(rf"(line |:){number}\b", done.err)):
        wrong.append("an error in an import has no line")
    done = here(*needy, "attention.extra=1")
    if not refused(done, "attention.extra", "needy") or re.search(r"\bof a\b", done.err):
        wrong.append("a class's name is shown for its kind")
    assert wrong == []


# --- 16: refused well ---------------------------------------------------------------------------------------


def test_bad_input_says_what_was_meant_and_ends_with_2(here: Door, door: Door, tmp_path: Path) -> None:
    wrong = []
    for word in ("steps=20", "model.steps=20"):
        if not refused(here(*TINY, word), "trainer.steps"):
            wrong.append(f"{word} does not say trainer.steps")
    done = here("model=nano", "data.path=text.txt")
    if not refused(done, "data=text"):
        wrong.append("data.path=… without data=text")
    done = here(*TINY, "ideas.smear.lr=2")
    if not refused(done, "ideas=[smear]") or "@package" in done.err:
        wrong.append("ideas.smear.lr without the idea")
    ended = [
        (what, done)
        for what, done in bad_input(here, door, tmp_path)
        if done.code != 2 or "Traceback" in done.err
    ]
    wrong += [f"exit code {done.code}, {what}" for what, done in ended]
    assert wrong == []


def bad_input(here: Door, door: Door, tmp_path: Path) -> Iterator[tuple[str, Finished]]:
    """Commands that each have something wrong in them."""
    made(here(*TINY))
    study(tmp_path / "mine")
    plain = ("model=nano", "trainer.threads=1", "trainer.precision=fp32")
    for place in ("file/under", "/proc/nocap"):  # no folder can be made there, whoever asks
        written(tmp_path / "file", "")
        yield f"train into {place}", here(*TINY, f"output_dir={place}")
        yield f"a grid into {place}", here(*TINY, "seed=0,1", "--multirun", f"output_dir={place}")
        yield f"a study into {place}", here("mine", "scale=cpu", f"output_dir={place}", module="nocap.study")
        yield f"compare into {place}", here("outputs", "--html", f"{place}/page.html", module="nocap.compare")
        yield (
            f"a profile into {place}",
            here(*plain, "--repeats", "1", "--json", f"{place}/p.json", module="nocap.profile"),
        )
    arms = ("--arm", "attention=flash", "--arm", "attention=mqa", "--rounds", "8")
    yield "a bench into file/under", here(*plain, *arms, "--json", "file/under/b.json", module="nocap.bench")

    shutil.copytree(SOFTCAP, tmp_path / "true/attention")
    written(tmp_path / "true/attention/softcap.yaml", "true\n")
    for name in ("exits", "later"):
        shutil.copytree(SOFTCAP, tmp_path / name / "attention")
    with (tmp_path / "exits/attention/softcap.py").open("a") as file:
        file.write("\nraise SystemExit(3)\n")
    path = tmp_path / "later/attention/softcap.py"
    path.write_text(edited(path.read_text(), ("super().__post_init__()", "raise SystemExit(3)")))
    arms_of = {"flash": ["attention=flash"], "mqa": ["attention=softcap"]}
    study(tmp_path / "softcapped", yaml.safe_dump({**STUDY, "arms": arms_of}, sort_keys=False))
    study(tmp_path / "true_study", "true\n")
    yield "a study.yaml that is true", here("true_study", "--judge", module="nocap.study")
    for name in ("true", "exits", "later"):
        flag = ("--config-dir", name)
        yield f"train, {name}", here(*flag, *TINY, "attention=softcap")
        yield f"study, {name}", here(*flag, "softcapped", "scale=cpu", "--judge", module="nocap.study")
        yield (
            f"bench, {name}",
            here(
                *flag, *plain, "--arm", "attention=flash", "--arm", "attention=softcap", module="nocap.bench"
            ),
        )
        yield (
            f"profile, {name}",
            here(*flag, *plain, "attention=softcap", "--repeats", "1", module="nocap.profile"),
        )
    yield "compare, exits", door("--config-dir", "exits", "outputs", module="nocap.compare")
