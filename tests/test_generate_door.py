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
from nocap.measure.generation import load
from nocap.options.attention.softmax import Kernel
from tests.attempts import on_a_terminal, sealed, stamp
from tests.conftest import Undisturbed

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trained(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A run of 30 steps on made-up bytes, in `outputs/runs`: its own copy."""
    return shutil.copytree(undisturbed.run_dir, tmp_path / "outputs" / "runs" / undisturbed.run_dir.name)


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The door in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        try:
            code = command.main(["device=cpu", "threads=1", *words])
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def samples_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["samples"]


@pytest.mark.slow
def test_the_text_is_the_models(trained: Path, say: Say, tmp_path: Path):
    """Greedy, against the training model's logits over the whole prefix."""
    code, out, err = say(
        f"run={trained}", "prompt=ab", "temperature=0", "max_tokens=20", "--json", str(tmp_path / "t.json")
    )
    assert (code, err) == (0, "")
    (sample,) = samples_of(tmp_path / "t.json")
    assert out.startswith("ab" + sample["text"])
    loaded = load(trained, device=torch.device("cpu"), log=print)
    assert loaded.step == 30
    tokens = list(b"ab")
    for token in sample["tokens"]:
        with torch.no_grad():
            assert token == int(loaded.model.logits(torch.tensor([tokens]))[0, -1].argmax())
        tokens.append(token)
    assert len(sample["tokens"]) == 20 or sample["stopped"] == "end_of_text"


def test_samples_differ_by_place_and_seed_and_come_again(trained: Path, say: Say, tmp_path: Path):
    texts = {}
    for name, words in {
        "one": ["samples=1"],
        "three": ["samples=3"],
        "other": ["samples=1", "seed=1"],
    }.items():
        assert (
            say(
                f"run={trained.name[-12:-4]}",
                "prompt=ab",
                "max_tokens=15",
                *words,
                "--json",
                str(tmp_path / name),
            )[0]
            == 0
        )
        texts[name] = [sample["tokens"] for sample in samples_of(tmp_path / name)]
    assert texts["three"][0] == texts["one"][0]
    assert len({str(tokens) for tokens in texts["three"] + texts["other"]}) == 4


def test_generation_stops_at_the_context_and_says_so(trained: Path, say: Say, tmp_path: Path):
    """128 tokens of context; the last new token needs no place in it."""
    words = (f"run={trained}", f"prompt={'a' * 120}", "temperature=0", "--json", str(tmp_path / "t.json"))
    code, _, err = say(*words, "max_tokens=500")
    assert code == 0
    assert (
        err == "nocap: stopped at the model's context, model.seq_len=128: 9 new tokens, not max_tokens=500\n"
    )
    (sample,) = samples_of(tmp_path / "t.json")
    assert (len(sample["tokens"]), sample["stopped"]) == (9, "context")
    assert say(*words, "max_tokens=9")[2] == ""


def test_a_prompt_may_hold_anything(trained: Path, say: Say):
    for prompt in ("", "${oc.env:HOME}", "???", "null", "a=b, [c] {d", "é…\n"):
        code, out, err = say(f"run={trained}", f"prompt={prompt}", "max_tokens=1")
        assert (code, err) == (0, "")
        assert out.startswith(prompt)


def test_the_newest_valid_checkpoint_is_used_and_a_broken_one_named(trained: Path, say: Say):
    last = trained / "checkpoints" / "step-00000030"
    older = shutil.copytree(last, last.with_name("step-00000024"))
    stamp(older)
    with (last / "model.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(b"xx")
    code, _, err = say(f"run={trained}", "max_tokens=2")
    assert code == 0
    assert err == f"nocap: checkpoint not used: {last}: model.safetensors does not match its checksum\n"
    (older / "model.safetensors").unlink()
    code, _, err = say(f"run={trained}", "max_tokens=2")
    assert code == 2
    assert err.splitlines()[-1] == f"nocap: {trained} must hold a valid checkpoint, got none"


def test_a_checkpoint_of_another_model_is_refused(trained: Path, say: Say):
    config = trained / "config.yaml"
    config.write_text(config.read_text().replace("n_layer: 2", "n_layer: 3"))
    sealed(trained)
    code, _, err = say(f"run={trained}", "max_tokens=2")
    assert code == 2
    assert "must hold what this run's model has, and differs in blocks.2" in err


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
    "no value": (["run=RUN", "prompt"], "'prompt' must be key=value"),
    "prompt no text": (["run=RUN", "prompt=\udcff"], "prompt must be UTF-8, got '\\udcff'"),
    "negative temperature": (["run=RUN", "temperature=-1"], "temperature must be at least 0, got -1.0"),
    "temperature no number": (["run=RUN", "temperature=nan"], "temperature must be a finite number, got nan"),
    "temperature a word": (["run=RUN", "temperature=hot"], "temperature"),
    "top_k": (["run=RUN", "top_k=-1"], "top_k must be at least 0"),
    "no tokens": (["run=RUN", "max_tokens=0"], "max_tokens must be at least 1, got 0"),
    "no samples": (["run=RUN", "samples=0"], "samples must be at least 1, got 0"),
    "seed": (["run=RUN", "seed=-1"], "seed must be at least 0, got -1"),
    "device": (["run=RUN", "device=tpu"], "device"),
    "prompt too long": (
        ["run=RUN", "prompt=" + "a" * 129],
        "prompt must be at most the model's context, model.seq_len=128 tokens, got 129",
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
def test_refused_in_one_line(trained: Path, say: Say, case: str):
    words, expected = REFUSALS[case]
    code, _, err = say(*[word.replace("RUN", str(trained)) for word in words])
    assert code == 2
    assert err.startswith("nocap: ")
    assert err.count("\n") == 1, err
    assert expected in err


def test_what_is_no_trained_run_is_refused(trained: Path, say: Say):
    shutil.rmtree(trained / "checkpoints")
    assert say(f"run={trained}")[::2] == (2, f"nocap: {trained} must hold a checkpoint, got none\n")
    (trained / "config.yaml").unlink()
    code, _, err = say(f"run={trained}")
    assert (code, err.count("\n")) == (2, 1)
    assert "must be a run's config.yaml" in err


def test_a_run_of_cuda_kernels_generates_on_the_cpu(trained: Path):
    config = trained / "config.yaml"
    text = config.read_text()
    for ours, on_cuda in {
        "kernel: fused": "kernel: cudnn",
        "device: cpu": "device: cuda",
        "fp32": "bf16",
    }.items():
        text = text.replace(ours, on_cuda)
    config.write_text(text)
    sealed(trained)
    assert load_config(config).attention.kernel is Kernel.cudnn
    loaded = load(trained, device=torch.device("cpu"), log=print)
    assert loaded.run.attention.kernel is Kernel.fused
    assert next(loaded.model.parameters()).dtype is torch.float32


# --- tokens as text -----------------------------------------------------------------------------------------


def test_what_is_no_utf8_is_marked(trained: Path):
    """And an end-of-text is no part of it."""
    loaded = load(trained, device=torch.device("cpu"), log=print)
    tokens = [97, 0xFF, 98, 0xE2, 0x82, loaded.encoding.eot_token]
    assert loaded.text(tokens) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.slow
def test_a_terminal_is_not_given_orders(trained: Path, tmp_path: Path):
    words = (f"run={trained}", "prompt=a\x1b[2J\tb\x07é", "max_tokens=1", "device=cpu", "threads=1")
    code, printed = on_a_terminal("-m", "nocap.generate", *words, cwd=tmp_path)
    assert code == 0
    assert printed.startswith("a\\x1b[2J\tb\\x07é")


def test_gpt2_text(trained: Path, say: Say, shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A fresh model in place of the trained one: what counts is the vocabulary."""
    from nocap.model.gpt import build_model
    from nocap.training import checkpoint

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken"))
    config = trained / "config.yaml"
    config.write_text(config.read_text().replace("vocabulary: bytes", "vocabulary: gpt2"))
    sealed(trained)
    model = build_model(load_config(config), vocab_size=50257)
    shutil.rmtree(trained / "checkpoints")
    tensors, _ = checkpoint.snapshot(model, [], copy=False)
    checkpoint._write(trained / "checkpoints", tensors=tensors, state={"step": 1}, rows=b"")
    code, out, err = say(
        f"run={trained}",
        "prompt=Hello, world",
        "max_tokens=30",
        "samples=2",
        "--json",
        str(tmp_path / "t.json"),
    )
    assert (code, err) == (0, "")
    for sample in samples_of(tmp_path / "t.json"):
        assert len(sample["tokens"]) == 30
        assert "Hello, world" + sample["text"] in out


def test_an_exported_file_writes_what_its_run_writes(trained: Path, say: Say, tmp_path: Path):
    file = tmp_path / "model.safetensors"
    assert export.main([str(trained), str(file)]) == 0
    texts = []
    for source in (trained, file):
        assert say(f"run={source}", "max_tokens=10", "--json", str(tmp_path / "t.json"))[0] == 0
        texts.append(samples_of(tmp_path / "t.json"))
    assert texts[0] == texts[1]


# --- without a cache ----------------------------------------------------------------------------------------


def test_the_same_text_without_a_cache(trained: Path, say: Say, tmp_path: Path):
    """Of each the tokens/s; what is one token has none."""
    texts = {}
    for cache in ("true", "false"):
        words = (
            f"run={trained}",
            "max_tokens=30",
            "samples=2",
            f"cache={cache}",
            "--json",
            str(tmp_path / "t.json"),
        )
        assert say(*words)[0] == 0
        content = json.loads((tmp_path / "t.json").read_text())
        assert content["decode_tokens_per_s"] > 0
        texts[cache] = content["samples"]
    assert texts["true"] == texts["false"]
    assert say(f"run={trained}", "max_tokens=1", "--json", str(tmp_path / "t.json"))[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["decode_tokens_per_s"] is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_the_same_text_compiled(trained: Path, say: Say, tmp_path: Path):
    texts = []
    for how in ("compile=true", "cache=false"):
        assert say(f"run={trained}", "max_tokens=20", how, "--json", str(tmp_path / "t.json"))[0] == 0
        texts.append(samples_of(tmp_path / "t.json"))
    assert texts[0] == texts[1]
