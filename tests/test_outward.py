"""What leaves the process: no secret in any file, page or line, no terminal control on a screen, no
markup from a record."""

import csv
import html
import io
import itertools
import json
import random
import re
import string
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nocap import compare
from nocap.config.compose import compose, composed
from nocap.config.outgoing_text import guarded, is_secret_name, redact, visible
from nocap.launch import plan as planning
from nocap.launch import record_head
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import Plan
from nocap.launch.progress import Reporter
from nocap.options.tracker import RunFacts, Tracker, TrackerSession
from nocap.report import comparison_page as report
from nocap.report.flat_rows import rows, to_csv
from nocap.report.table import Column, Table, markdown, tame
from nocap.runs import __main__ as runs
from nocap.store.file_writing import append_text, write_text
from nocap.store.record_files import digest, write_json
from nocap.store.rows_file import RowsFile
from nocap.store.tracking import open_tracker
from nocap.study import log, study_command
from nocap.study.result_writer import to_json
from tests.attempts import on_a_terminal
from tests.conftest import REPO, SMALL
from tests.made_grid import made, record_of
from tests.sealing import seal
from tests.studies import SPEED, loaded, study
from tests.test_bad_input import ask, empty, refused  # noqa: F401
from tests.test_study_results import FAST, SAME, resulted, speeds


def some(n: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Made up here, so that no file of the repository looks as if it held a token."""
    chance = random.Random(n)
    return "".join(chance.choices(alphabet, k=n - 2)) + "A1"


LOWER = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{some(64)}\n{some(63)}\n-----END RSA PRIVATE KEY-----"
SHAPES = {  # a name → a text with a secret in it, and the secret
    "github": ("clone ghp_{}", some(36)),
    "github, fine-grained": ("github_pat_{}", some(82)),
    "hugging face": ("/data/hf_{}/shards", some(34)),
    "wandb": ("wandb_v1_{}", some(77)),
    "openai": ("sk-proj-{}", some(48)),
    "anthropic": ("sk-ant-api03-{}", some(95)),
    "bearer": ("Authorization: Bearer {}", some(40, LOWER)),
    "url": ("https://me:{}@example.org/shards", "hunter2-and-more"),
    "url's user": ("https://{}@example.org/shards", some(40, HEX)),
    "private key": ("{}", PEM),
}
VARIABLES = {
    "GITHUB_PAT": "not-of-any-shape-1",
    "DB_PASSWD": "correct horse battery",
    "WANDB_API_KEY": some(40, HEX),
    "MY_API_KEY": 'k3y"of\\mine',
    "PG_PWD": "p@ss/w%rd<&>1",
    "SSHPASS": "überlang-und-geheim",
    "SIGNING_SECRET": f"first line of it\n{some(50)}",
}
TEXTS = [text.format(secret) for text, secret in SHAPES.values()] + [
    f"x{value}y" for value in VARIABLES.values()
]
PLANTED = (
    [secret for _, secret in SHAPES.values()] + list(VARIABLES.values()) + [some(64), some(50)]
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "A_TOKEN": "shuffled",
        "B_TOKEN": "finished",
        "C_SECRET": "synthetic",
        "D_KEY": "wandb_offline",
    }
    for name, value in (VARIABLES | words).items():  # words of the schema and of records
        monkeypatch.setenv(name, value)


def leaked(text: str) -> list[str]:
    """The planted secrets that are in a text, however they are spelt."""
    quoted = (
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    )
    spellings = (str, html.escape, lambda secret: repr(secret)[1:-1], *quoted)
    return [secret for secret in PLANTED if any(spelling(secret) in text for spelling in spellings)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("out")
    cache = tmp_path_factory.mktemp("cache")
    chosen = composed([*SMALL, f"output_dir={out}", f"cache_dir={cache}"])
    return planning.plan(chosen.run, choices=chosen.choices)


def record(folder: Path, planned: Plan) -> None:
    tagged = compose([*SMALL, "tracker=wandb"]).tracker
    tagged.tags = [text for text in TEXTS if "\n" not in text and len(text) <= 64]
    tagged.group = TEXTS[0]
    tagged.notes = "\n".join(TEXTS)
    members = {"record": {"path": TEXTS[0]}, "seconds": 0.0}
    init = type("Init", (), members)()
    run = replace(planned.run, tracker=tagged)
    hostile_plan = replace(planned, run_dir=folder, run=run, init=init, name=TEXTS[1])
    record_head.write_record_head(hostile_plan)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["data"]["kind"] == "synthetic"
    assert config["tracker"]["kind"] == "wandb"
    overrides = tuple(f"tracker.tags=[{text}]" for text in TEXTS)
    cell = Cell(overrides=overrides, label=TEXTS[0], plan=planned)
    Grid(name="g", folder=folder, swept=("seed",), cells=(cell,)).write()
    RowsFile(folder / "metrics.jsonl").append({"step": 0, "note": TEXTS, "train/loss": 1.5})
    write_json(
        folder / "summary.json", {"status": "finished", "error": TEXTS, "tracker": {"url": TEXTS}}
    )
    names = ("manifest.json", "grid.json", "metrics.jsonl", "summary.json")
    manifest, grid, row, summary = (json.loads((folder / name).read_text()) for name in names)
    assert manifest["identity"] == planned.identity
    assert grid["cells"][0]["identity"] == planned.identity
    assert row["train/loss"] == 1.5
    assert summary["status"] == "finished"


def logs_and_screen(folder: Path, planned: Plan) -> None:
    reporter = Reporter(log_path=folder / "train.log", steps=1)
    for i, text in enumerate(TEXTS):
        reporter.log(text)
        append_text(folder / "train.log", text)
        print(text)
        print(text, file=sys.stderr)
        write_text(folder / f"{i}.py", f"# {text}\n" if "\n" not in text else text)


def hostile_study(folder: Path, text: str) -> None:
    """A study and its results, as somebody else's nocap may have written them, with this text
    wherever they hold one."""
    shown = "".join(letter for letter in text if letter.isprintable())  # a study.yaml has no other
    stated = {**SPEED, "statement": shown, "source": shown}
    made = loaded(
        folder, study(claims=[stated], question=shown, method=shown, notes={"M.speed": shown})
    )
    result = resulted(made, speeds(FAST, SAME))
    content = json.loads(json.dumps(to_json(result)))
    for shape in itertools.chain(*content["claims"][0]["where"].values()):
        shape["tokenizer"] = text
    content["hardware"]["name"] = text
    content |= {"command": f"x ` {text}\n```\n# y", "date": text}
    (folder / "results.cpu.x.json").write_text(json.dumps(content))


def studies(folder: Path, planned: Plan) -> None:
    lines = list[log.RegistrationLine]()
    for i, text in enumerate(TEXTS):
        line = log.RegistrationLine(claim=f"M.{i}.{text}", hash=text, subject=text)
        lines.append(line)
    log.append(folder / log.FILE, lines, machine="abc", scale="cpu")
    for i, text in enumerate(TEXTS[:: len(TEXTS) // 3]):  # a form of each kind
        hostile_study(folder / "board" / f"s{i}", text)
    assert study_command.board(folder / "board") == 0
    for raw in folder.glob("board/*/*.*"):
        if raw.name != "README.md":
            raw.unlink()


def comparisons(folder: Path, planned: Plan) -> None:
    # of a nocap that did not redact
    run_dirs = [hostile(folder.parent / "theirs", "r", i, text) for i, text in enumerate(TEXTS)]
    files = {}
    for suffix in ("json", "csv", "html", "markdown"):
        files[f"--{suffix}"] = str(folder / f"out.{suffix}")
    theirs = str(folder.parent / "theirs")
    compare.main([theirs, *itertools.chain(*files.items())])
    runs.main(["why", *(str(run_dirs[i]) for i in (0, 5))])
    page = replace(made(1), problems=TEXTS)
    report.write(page, folder / "report.html")
    columns = [Column(title="arm")]
    table = Table(title="", columns=columns, rows=[[text] for text in TEXTS])
    print(table)


@dataclass
class Recording(Tracker):
    """Keeps what a tracker is given."""

    kind: str = "recording"
    tags: list[str] = field(default_factory=list)

    def open(self, facts: RunFacts) -> TrackerSession:
        kept.append([facts, self.tags])
        session = type(
            "Session", (TrackerSession,), {"log": lambda session, row: kept.append(row)}
        )()
        session.finish = lambda **given: kept.append(given)  # type: ignore[method-assign]
        return session


kept: list[Any] = []


def mirrors(folder: Path, planned: Plan) -> None:
    kept.clear()
    texts = {"name": TEXTS[0], "config": {"x": TEXTS}, "tags": tuple(TEXTS)}
    facts = RunFacts(identity="0123abcd4567", arm="a", seed=0, run_dir=folder, **texts)
    rows_of_texts = [{"step": 0, "note": TEXTS}]
    session = open_tracker(Recording(tags=TEXTS), facts, rows=rows_of_texts)
    session.finish(summary={"error": TEXTS}, status="failed")
    assert len(kept) == 3
    (folder / "mirror").write_text(repr(kept))


@pytest.mark.parametrize(
    "sink", [record, logs_and_screen, studies, comparisons, mirrors], ids=lambda sink: sink.__name__
)
def test_no_secret_reaches_a_file_or_a_screen(
    sink: Callable[[Path, Plan], None],
    tmp_path: Path,
    planned: Plan,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with guarded():
        sink(folder, planned)
    paths = folder.rglob("*")
    shown = {str(p.name): p.read_text() for p in paths if p.is_file()}
    shown |= {"the screen": "".join(capsys.readouterr())}
    assert {name: leaks for name, text in shown.items() if (leaks := leaked(text))} == {}
    assert any("redacted:" in text for text in shown.values())


@pytest.mark.slow
def test_what_is_no_secret_stays() -> None:
    """Names, digests, identities, paths, schemas, times: the repository's configurations and code,
    and some lines of its results."""
    paths = (REPO / "conf").rglob("*.yaml")
    files = [*paths, *(REPO / "nocap").rglob("*.py")]
    results = set()
    for path in (REPO / "experiments").rglob("*.json"):
        results.update(path.read_text().splitlines())
    lines = set()
    for path in files:
        lines.update(path.read_text().splitlines())
    chance = random.Random(0)
    lines |= {*chance.sample(sorted(results), 4000), "2026-11-20T10:11:12+0100", "ssh://git@host/x"}
    lines |= {"nano-mha-swiglu-cosine-adamw-s0-0123abcd4567", some(64, HEX).lower()}
    lines |= {"/scratch/Group-A/data/Tokens_v2/train_000001.bin"}
    assert len(files) > 200
    assert [line for line in lines if redact(line) != line] == []


SECRET = (
    "GITHUB_PAT DB_PASSWD PGPASSWORD MYSQL_PWD HF_TOKEN sshpass OAUTH X_CREDS APIKEY "
    "SIGNING_SECRET DB_PASS"
)
PUBLIC = (
    "PATH PWD OLDPWD SSH_AUTH_SOCK SSH_ASKPASS GIT_AUTHOR_NAME COMPASS XAUTHORITY "
    "AWS_TOKEN_FILE PATTERN"
)


def test_names_of_secret_variables() -> None:
    names = [name for name in f"{SECRET} {PUBLIC}".split() if is_secret_name(name)]
    assert names == SECRET.split()


@pytest.mark.parametrize(
    "words",
    [
        ("output_dir=${oc.env:GITHUB_PAT}",),
        ("data.train=/x/${oc.env:WANDB_API_KEY}/y", "data=shards", "data.val=x"),
        (f"cache_dir=/hf_{some(34)}",),
    ],
)
def test_a_secret_that_the_run_needs_is_refused(
    words: Sequence[str],
    ask: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    key = words[0].partition("=")[0]
    small = [word for word in SMALL if not word.startswith("data")]
    asked = ask("train", *small, *words)
    refused(asked, f"nocap: {key} must not hold a secret", "<redacted:")
    assert leaked(asked[1][0]) == []
    assert [*tmp_path.iterdir()] == []


# --- terminal control and markup ------------------------------------------------------------------

ESCAPES = ("\x1b[31m", "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x1b[8m", "\x1b[1A\x1b[K")
ESCAPES += ("\r", "\b\b", "\u202e", "\u2028", "\x00", "\x7f", "\ud800")
EVIL = (
    "".join(ESCAPES)
    + "</script><script>alert(1)</script><!-- end of board --> [x](javascript:alert(1)) | "
    "[y]: data:text/html,z"
)


def hostile(root: Path, name: str, seed: int, evil: str = EVIL, **summary: Any) -> Path:
    """A run's folder whose every text is hostile, and which contradicts itself nowhere."""
    config = {"seed": seed, "data": {"kind": f"{evil}{seed % 2}"}}
    parts = {"config": config, "data": evil, "source": {evil: evil}, "environment": {"torch": evil}}
    folder = root / "runs" / f"{name}-{digest(parts)}"
    folder.mkdir(parents=True)
    data = {"source": {evil: evil}, "train": [{"sha256": "a"}], "val": [{"sha256": "b"}]}
    manifest = {
        "identity": digest(parts),
        "name": evil,
        "arm": f"{evil}{seed % 2}",
        "parts": parts,
        "data": data,
    }
    hardware = {"name": evil, "fingerprint": evil, "host": evil}
    more = {
        "versions": {evil: evil},
        "git": {"commit": evil, "diff_sha256": evil},
        "hardware": hardware,
    }
    content = {**manifest, **more, "attempts": [{"started": evil}]}
    (folder / "manifest.json").write_text(json.dumps(content))
    outcome = {
        "status": "finished",
        "seed": seed,
        "val_loss": 3.0 + seed / 100,
        "steps": 2,
        "tokens": 10,
    }
    outcome |= {"tokens_per_s": 5.0, "clock_s": {"train": 2.0}, "kernel": {"train": evil}}
    content = {**outcome, "tracker": evil, "error": evil, **summary}
    (folder / "summary.json").write_text(json.dumps(content))
    rows = []
    for step in range(3):
        rows.append(
            {
                "step": step,
                "val/loss": 5.0 - step + seed / 100,
                evil: 1.0,
                "clock/train_s": float(step),
            }
        )
    texts = "\n".join(map(json.dumps, rows))
    (folder / "metrics.jsonl").write_text(texts + "\n")
    return seal(folder)


def controls(text: str) -> list[str]:
    return [escape for escape in ESCAPES if escape in text]


def test_a_hostile_record_does_nothing_to_a_screen_or_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(4):
        hostile(tmp_path, f"r\x1b[31m\u202e{seed}", seed)
    hostile(tmp_path, "bad\x1b]0;x\x07", 9, status=EVIL)
    broken = tmp_path / "runs" / "broken\x1b[2J-00000000000a" / "manifest.json"
    broken.parent.mkdir()
    broken.write_text(EVIL.encode("utf-8", "replace").decode())
    files = {suffix: tmp_path / f"out.{suffix}" for suffix in ("json", "csv", "html", "markdown")}
    compare.main([str(tmp_path), *(f"--{suffix}={path}" for suffix, path in files.items())])
    runs.main(["why", *(str(hostile(tmp_path, "plain", seed)) for seed in (4, 5))])
    with pytest.raises(SystemExit, match="2"):
        compare.main([str(tmp_path / f"{EVIL[:40]}nothing")])
    shown = capsys.readouterr()
    page = files["html"].read_text()
    answer = files["json"].read_text()
    found = [controls(text) for text in (*shown, page, answer)]
    assert found == [[]] * 4
    assert r"\x1b[31m" in shown.out
    assert r"\x1b" in shown.err
    assert page.count("<script") == 2  # its own: data, the page's
    assert "alert(1)</script>" not in page
    json.loads(answer)


def test_a_hostile_study_writes_no_markup(tmp_path: Path) -> None:
    hostile_study(tmp_path / "made", EVIL)
    assert study_command.board(tmp_path) == 0
    text = (tmp_path / "README.md").read_text()
    assert EVIL[-9:] in text
    assert controls(text) == []
    assert not re.search(r"<script|\]\(javascript:|\]: data:|(?<!#)javascript:", text)


def test_markdown_cells_end_where_they_should() -> None:
    _, _, row = markdown(["a", "b"], [["x\\| y | z", "line\nbreak"]])
    assert row == r"| x\| y \| z | line break |"
    links = "see [this](../README.md), [that](https://x.org) and a "
    assert tame(links + "< b") == links + "&lt; b"
    assert tame("[a](JavaScript:x)") == "[a](#JavaScript:x)"


def test_a_spreadsheet_computes_no_cell() -> None:
    names = ("=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(1)", "\t=1", "plain")
    records = []
    for seed, name in enumerate(names):
        records.append(replace(record_of("flash", "gelu4x", seed), name=name))
    table_of_runs = io.StringIO(to_csv(rows(records)))
    shown = [row["name"] for row in csv.DictReader(table_of_runs)]
    expected = ["'"] * 5 + ["p"]
    assert [name[0] for name in shown] == expected


def test_a_terminal_gets_its_own_style_only(tmp_path: Path) -> None:
    """On a terminal a table's head is bold, and a record's bytes are words."""
    hostile(tmp_path, "a", 1)
    _, out = on_a_terminal("-m", "nocap.compare", str(tmp_path), cwd=tmp_path)
    assert "\x1b[1m" in out
    assert controls(out.replace("\r\n", "\n")) == []


@pytest.mark.parametrize("text", ["a − b × 2 – “x” …\n\tüé漢字 🙂", "0123 ~!@#$%^&*()"])
def test_visible_keeps_what_people_write(text: str) -> None:
    assert visible(text) == text
