"""`python -m nocap.generate`: texts of a trained run, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nocap import export
from nocap import generate as command
from nocap.config.plain import load as load_config
from nocap.generation.sampling import load
from nocap.options.attention.kernel import Kernel
from tests.attempts import on_a_terminal, sealed, stamp
from tests.conftest import Undisturbed

Say = Callable[..., tuple[int, str, str, dict[str, Any]]]
CPU = torch.device("cpu")


@pytest.fixture
def trained(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A run of 30 steps on made-up bytes, in `outputs/runs`: its own copy."""
    return shutil.copytree(
        undisturbed.run_dir, tmp_path / "outputs" / "runs" / undisturbed.run_dir.name
    )


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The door in this process: exit code, stdout, stderr, answer."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str, dict[str, Any]]:
        try:
            code = command.main(["device=cpu", "threads=1", "--json", "answer.json", *words])
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        if code == 0:
            answer = json.loads(Path("answer.json").read_text())
        else:
            answer = {}
        return code, said.out, said.err, answer

    return call


def tokens_of(answer: dict[str, Any]) -> list[list[int]]:
    return [sample["tokens"] for sample in answer["samples"]]


def edited(run_dir: Path, *changes: tuple[str, str]) -> Path:
    """Its config with these words in place of others, under a seal that fits; returns the file."""
    config = run_dir / "config.yaml"
    for old, new in changes:
        text = config.read_text().replace(old, new)
        config.write_text(text)
    sealed(run_dir)
    return config


def test_the_text_is_the_models(undisturbed: Undisturbed, say: Say):
    """Greedy, against the training model's logits over the whole prefix; with a cache and
    without."""
    words = (f"run={undisturbed.run_dir}", "prompt=ab", "temperature=0")
    code, out, err, answer = say(*words, "max_tokens=8")
    assert code == 0
    assert err == ""
    assert out.startswith("ab" + answer["samples"][0]["text"])
    loaded = load(undisturbed.run_dir, device=CPU, log=print)
    (tokens,) = tokens_of(answer)
    with torch.no_grad():
        text = torch.tensor([[*b"ab", *tokens]])
        logits_TV = loaded.model.logits(text)[0]
    assert loaded.step == 30
    assert tokens == logits_TV.argmax(-1)[1:-1].tolist()
    uncached = say(*words, "max_tokens=8", "cache=false")[3]
    assert uncached["samples"] == answer["samples"]


def test_the_answer_says_how_fast_the_tokens_came(
    undisturbed: Undisturbed, say: Say, monkeypatch: pytest.MonkeyPatch
):
    """By a clock that shows these seconds: the first token took 0.5 s, the others 0.1, 0.3 and 0.1
    s."""
    shown = iter([1.0, 1.5, 1.6, 1.9, 2.0])
    monkeypatch.setattr("nocap.generation.sampling.time.perf_counter", lambda: next(shown))
    answer = say(f"run={undisturbed.run_dir}", "prompt=ab", "max_tokens=4", "samples=2")[3]
    assert answer["first_token_ms"] == pytest.approx(500)
    assert answer["decode_ms"] == pytest.approx(100)
    assert answer["decode_tokens_per_s"] == pytest.approx(2 * 3 / 0.5)
    assert list(shown) == []


def test_of_one_token_there_is_only_the_first(undisturbed: Undisturbed, say: Say):
    answer = say(f"run={undisturbed.run_dir}", "prompt=ab", "max_tokens=1")[3]
    assert answer["first_token_ms"] > 0
    assert answer["decode_ms"] is None
    assert answer["decode_tokens_per_s"] is None


def test_samples_differ_by_place_and_seed_and_come_again(trained: Path, say: Say):
    name = f"run={trained.name[-12:-4]}"
    words = (name, "prompt=ab", "max_tokens=15")
    one = tokens_of(say(*words, "seed=0")[3])
    three = tokens_of(say(*words, "samples=3")[3])
    other = tokens_of(say(*words, "seed=1")[3])
    assert three[0] == one[0]
    assert len(set(map(str, three + other))) == 4


def test_generation_stops_at_the_context_and_says_so(undisturbed: Undisturbed, say: Say):
    """128 tokens of context; the last new token needs no place in it."""
    words = (f"run={undisturbed.run_dir}", f"prompt={'a' * 120}", "temperature=0")
    code, _, err, answer = say(*words, "max_tokens=500")
    note = (
        "nocap: stopped at the model's context, model.seq_len=128: 9 new tokens, not "
        "max_tokens=500\n"
    )
    assert code == 0
    assert err == note
    assert len(tokens_of(answer)[0]) == 9
    assert answer["samples"][0]["stopped"] == "context"
    assert say(*words, "max_tokens=9")[2] == ""


def test_a_prompt_may_hold_anything(undisturbed: Undisturbed, say: Say):
    for prompt in ("", "${oc.env:HOME}", "???", "null", "a=b, [c] {d", "é…\n"):
        code, out, err, _ = say(f"run={undisturbed.run_dir}", f"prompt={prompt}", "max_tokens=1")
        assert code == 0
        assert err == ""
        assert out[: len(prompt)] == prompt


def test_the_newest_valid_checkpoint_is_used_and_a_broken_one_named(trained: Path, say: Say):
    last = trained / "checkpoints" / "step-00000030"
    older = shutil.copytree(last, last.with_name("step-00000024"))
    stamp(older)
    with (last / "model.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(b"xx")
    note = f"nocap: checkpoint not used: {last}: model.safetensors does not match its checksum\n"
    assert say(f"run={trained}", "max_tokens=2")[::2] == (0, note)
    (older / "model.safetensors").unlink()
    code, _, err, _ = say(f"run={trained}", "max_tokens=2")
    assert code == 2
    assert err.splitlines()[-1] == f"nocap: {trained} must hold a valid checkpoint, got none"


# --- what is refused ------------------------------------------------------------------------------

REFUSALS = {
    "no run at all": (
        ["output_dir=there"],
        "last must be a run, a folder, a glob, or a run's name or identity in there/runs",
    ),
    "unknown run": (
        ["run=nothing"],
        "nothing must be a run, a folder, a glob, or a run's name or identity in outputs/runs",
    ),
    "unknown run elsewhere": (["run=nothing", "output_dir=there"], "in there/runs"),
    "unknown key": (
        ["run=RUN", "temprature=1"],
        "temprature is no key of generate (did you mean temperature?)",
    ),
    "no value": (["run=RUN", "prompt"], "'prompt' must have the form key=value"),
    "prompt no text": (["run=RUN", "prompt=\udcff"], "prompt must be UTF-8, got '\\udcff'"),
    "negative temperature": (
        ["run=RUN", "temperature=-1"],
        "temperature must be at least 0, got -1.0",
    ),
    "temperature no number": (
        ["run=RUN", "temperature=nan"],
        "temperature must be a finite number, got nan",
    ),
    "temperature a word": (["run=RUN", "temperature=hot"], "temperature"),
    "top_k": (["run=RUN", "top_k=-1"], "top_k must be at least 0"),
    "no tokens": (["run=RUN", "max_tokens=0"], "max_tokens must be at least 1, got 0"),
    "no samples": (["run=RUN", "samples=0"], "samples must be at least 1, got 0"),
    "seed": (["run=RUN", "seed=-1"], "seed must be at least 0, got -1"),
    "device": (["run=RUN", "device=tpu"], "device"),
    "prompt too long": (
        ["run=RUN", "prompt=" + "a" * 129],
        "prompt must have at most model.seq_len=128 tokens, the model's context, got 129",
    ),
    "compiled without a cache": (
        ["run=RUN", "cache=false", "compile=true"],
        "compile must be false with cache=false",
    ),
    "json": (
        ["run=RUN", "max_tokens=1", "--json", "/proc/none"],
        "--json must be a file that can be written, got /proc/none",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_one_line(undisturbed: Undisturbed, say: Say, case: str):
    words, expected = REFUSALS[case]
    code, _, err, _ = say(*[word.replace("RUN", str(undisturbed.run_dir)) for word in words])
    assert code == 2
    assert err.count("\n") == 1
    assert err[:7] == "nocap: "
    assert expected in err


def test_what_is_no_trained_run_is_refused(trained: Path, say: Say):
    edited(trained, ("n_layer: 2", "n_layer: 3"))
    words = (f"run={trained}", "max_tokens=2")
    code, _, err, _ = say(*words)
    assert code == 2
    assert "must hold the tensors of this run's model, and differs in blocks.2" in err
    shutil.rmtree(trained / "checkpoints")
    assert say(*words)[::2] == (2, f"nocap: {trained} must hold a checkpoint, got none\n")
    (trained / "config.yaml").unlink()
    code, _, err, _ = say(*words)
    assert code == 2
    assert err.count("\n") == 1
    assert "must be a run's config.yaml" in err


# --- other runs and other ways --------------------------------------------------------------------


def test_a_run_of_cuda_kernels_generates_on_the_cpu(trained: Path):
    cuda = (("kernel: fused", "kernel: cudnn"), ("device: cpu", "device: cuda"), ("fp32", "bf16"))
    attention = load_config(edited(trained, *cuda)).attention
    assert attention.kernel is Kernel.cudnn
    loaded = load(trained, device=CPU, log=print)
    assert loaded.run.attention.kernel is Kernel.fused
    parameters = loaded.model.parameters()
    assert next(parameters).dtype is torch.float32


def test_what_is_no_utf8_is_marked(undisturbed: Undisturbed):
    """And an end-of-text is no part of it."""
    loaded = load(undisturbed.run_dir, device=CPU, log=print)
    tokens = [97, 0xFF, 98, 0xE2, 0x82, loaded.encoding.eot_token]
    assert loaded.text(tokens) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.slow
def test_a_terminal_is_not_given_orders(trained: Path, tmp_path: Path):
    words = (f"run={trained}", "prompt=a\x1b[2J\tb\x07é", "max_tokens=1", "device=cpu", "threads=1")
    code, printed = on_a_terminal("-m", "nocap.generate", *words, cwd=tmp_path)
    assert code == 0
    assert printed.startswith("a\\x1b[2J\tb\\x07é")


def test_an_exported_file_writes_what_its_run_writes(
    undisturbed: Undisturbed, say: Say, tmp_path: Path
):
    file = tmp_path / "model.safetensors"
    run_dir = str(undisturbed.run_dir)
    assert export.main([run_dir, str(file)]) == 0
    texts = []
    for source in (undisturbed.run_dir, file):
        samples = say(f"run={source}", "max_tokens=5")[3]["samples"]
        texts.append(samples)
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_the_same_text_compiled(undisturbed: Undisturbed, say: Say):
    words = (f"run={undisturbed.run_dir}", "max_tokens=20")
    compiled = say(*words, "compile=true")[3]["samples"]
    plain = say(*words, "cache=false")[3]["samples"]
    assert compiled == plain
