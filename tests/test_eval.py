"""lm-eval's questions to a run's model, against the same model asked by hand, a text at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from nocap import eval as door
from nocap.config.keys import InputError
from nocap.measure.generation import Trained, load
from tests.conftest import Undisturbed

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance

from nocap.measure.harness import Harnessed

LONG = "; ".join(f"line {i} of a text that no context holds" for i in range(12))
PAIRS = [("def main", "(x):"), ("", "import os"), (" ", "a b"), ("to be or not to", " be"), (LONG, "end")]


@pytest.fixture(scope="module")
def trained(undisturbed: Undisturbed) -> Trained:
    return load(undisturbed.run_dir, device=torch.device("cpu"), log=print)


@pytest.fixture
def harnessed(trained: Trained) -> Harnessed:
    return Harnessed(trained, batch_size=3)


def asked(kind: str, *arguments: tuple[object, ...]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=given, idx=0) for given in arguments]


@torch.no_grad()
def by_hand(trained: Trained, tokens: list[int], scored: int) -> tuple[float, bool]:
    """Of the last tokens, each from its own softmax over all tokens, before which stands what is before
    it."""
    logits_TV = trained.model.logits(torch.tensor([tokens[:-1]]))[0].double()
    total, greedy = 0.0, True
    for at in range(len(tokens) - 1 - scored, len(tokens) - 1):
        exponentials_V = (logits_TV[at] - logits_TV[at].max()).exp()
        total += float((exponentials_V[tokens[at + 1]] / exponentials_V.sum()).log())
        greedy &= int(logits_TV[at].argmax()) == tokens[at + 1]
    return total, greedy


def test_continuations_have_the_log_likelihoods_of_the_definition(
    trained: Trained, harnessed: Harnessed
) -> None:
    encode, eot, most = (
        trained.encoding.encode_ordinary,
        trained.encoding.eot_token,
        trained.run.model.seq_len,
    )
    rows = [([eot] * (context.strip() == "") + encode(context + text)) for context, text in PAIRS]
    # the space goes to the continuation
    scored = [len(encode(text)) + (context == " ") for context, text in PAIRS]
    likely = int(trained.model.logits(torch.tensor([encode("def main")]))[0, -1].argmax())
    greedy = ("def main", trained.encoding.decode([likely]))
    answers = harnessed.loglikelihood(asked("loglikelihood", *PAIRS, greedy), disable_tqdm=True)
    for (logprob, _), row, n in zip(answers, rows, scored, strict=False):
        assert logprob == pytest.approx(by_hand(trained, row[-most - 1 :], n)[0], abs=1e-3)
    assert [answers[0][1], answers[-1][1]] == [by_hand(trained, rows[0], 4)[1], True]
    assert harnessed.shortened == 1
    with pytest.raises(ValueError, match=f"a text to score must have at most {most} tokens, got {len(LONG)}"):
        harnessed.loglikelihood(asked("loglikelihood", ("a", LONG)), disable_tqdm=True)


def test_a_whole_texts_tokens_count_once_each_with_as_much_context_as_fits(
    trained: Trained, harnessed: Harnessed
) -> None:
    most = trained.run.model.seq_len
    tokens = [trained.encoding.eot_token, *trained.encoding.encode_ordinary(LONG)]
    last = (len(tokens) - 1) % most
    pieces = [(tokens[at : at + most + 1], most) for at in range(0, len(tokens) - 1 - last, most)]
    expected = sum(by_hand(trained, piece, n)[0] for piece, n in [*pieces, (tokens[-most - 1 :], last)])
    assert 0 < last < most < len(tokens)
    actual = harnessed.loglikelihood_rolling(asked("loglikelihood_rolling", (LONG,), ("short",)))
    assert actual == pytest.approx([expected, by_hand(trained, [tokens[0], *b"short"], 5)[0]], abs=1e-2)
    assert harnessed.shortened == 0


def test_a_task_that_lets_the_model_write_is_refused(harnessed: Harnessed) -> None:
    with pytest.raises(InputError, match="a task must score given texts"):
        harnessed.generate_until(asked("generate_until", ("def main", {"max_gen_toks": 6})))


DOCUMENTS = [
    {"q": "def ", "a": ["x():", "zz!?"]},
    {"q": "import ", "a": ["zq~~", "os.p"]},
    {"q": "in", "a": ["t(1)", "~~~~"]},
]


@pytest.mark.slow
def test_a_task_of_ones_own_ends_in_the_same_answers(
    undisturbed: Undisturbed, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(tmp_path / "documents.jsonl")},
            "cache_dir": str(tmp_path / "cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{a}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "own.yaml").write_text(json.dumps(task))  # which is YAML
    words = [
        undisturbed.run_dir.name,
        "--output-dir",
        str(undisturbed.output_dir),
        "--device",
        "cpu",
        "--json",
        str(tmp_path / "r.json"),
    ]
    assert door.main([*words, "--tasks", str(tmp_path / "own.yaml")]) == 0
    assert "|own " in capsys.readouterr().out
    results = json.loads((tmp_path / "r.json").read_text())
    first = [
        max(range(2), key=lambda i: by_hand(trained, [*(document["q"] + document["a"][i]).encode()], 4)[0])
        == 0
        for document in DOCUMENTS
    ]
    assert results["results"]["own"]["acc,none"] == pytest.approx(sum(first) / 3)
    assert (results["checkpoint_step"], results["n-samples"]["own"]["effective"]) == (30, 3)


def test_refusals_are_one_line(
    undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(undisturbed.run_dir), "--tasks", "own.yaml"]
    cases = {
        "nocap: --limit must be at least 1, got 0": [*words, "--limit", "0"],
        "nocap: --num-fewshot must be at least 0, got -1": [*words, "--num-fewshot", "-1"],
        "nocap: nocap.eval must have lm-eval: pip install 'nocap[eval]'": words,
    }
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for line, given in cases.items():
        with pytest.raises(SystemExit, match="2"):
            door.main(given)
        assert capsys.readouterr().err == f"{line}\n"
