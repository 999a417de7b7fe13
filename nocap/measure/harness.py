"""A run's model as lm-eval asks models: log-likelihoods of texts.

B: texts of a batch, T: tokens, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import Collator
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from nocap.config.keys import InputError, require
from nocap.measure.generation import Trained


class Harnessed(TemplateLM):  # type: ignore[misc]
    """A model has `model.seq_len` positions. Of a longer context the end is read, as lm-eval's own models do;
    `shortened` counts them.

    An answer that is itself longer cannot be scored, and is refused.
    """

    def __init__(self, trained: Trained, *, batch_size: int) -> None:
        super().__init__()
        self.trained, self.batch_size = trained, batch_size
        self.positions, self.shortened = trained.run.model.seq_len, 0

    @property
    def eot_token_id(self) -> int:
        return self.trained.encoding.eot_token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.trained.encoding.encode_ordinary(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Of each continuation given its context, and whether each of its tokens was the most probable
        one."""
        rows = list[tuple[list[int], int]]()
        for _, context, continuation in requests:
            require(
                len(continuation) <= self.positions,
                "a text to score",
                f"have at most {self.positions} tokens",
                len(continuation),
            )
            tokens = [*(context or [self.eot_token_id]), *continuation]
            self.shortened += len(tokens) > self.positions + 1
            rows.append((tokens[-self.positions - 1 :], len(continuation)))
        collator = Collator(rows, sort_fn=lambda row: -len(row[0]))  # texts of like lengths share a batch
        scores = [score for batch in collator.get_batched(n=self.batch_size) for score in self._scored(batch)]
        return list(collator.get_original(scores))

    @torch.no_grad()
    def _scored(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Of the last so many tokens of each row. Causal attention does not see the padding at the right."""
        longest = max(len(tokens) for tokens, _ in rows)
        tokens_BT = torch.tensor(
            [tokens + [self.eot_token_id] * (longest - len(tokens)) for tokens, _ in rows],
            device=self.trained.device,
        )
        logits_BTV = self.trained.model.logits(tokens_BT[:, :-1]).float()
        scores = []
        for row, (tokens, scored) in enumerate(rows):
            window = slice(len(tokens) - 1 - scored, len(tokens) - 1)
            logits_TV, targets_T = logits_BTV[row, window], tokens_BT[row, 1:][window]
            logprobs_T = logits_TV.log_softmax(-1).gather(1, targets_T[:, None])
            scores.append((float(logprobs_T.double().sum()), bool((logits_TV.argmax(-1) == targets_T).all())))
        return scores

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, each after an end-of-text. A longer one is cut as lm-eval cuts: every token is
        scored once, and the last piece has as much context as fits."""
        windows = [
            get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.eot_token_id, max_seq_len=self.positions, context_len=1
            )
            for request in requests
        ]
        texts = [[(None, *make_disjoint_window(window)) for window in text] for text in windows]
        scores = iter(self._loglikelihood_tokens([piece for text in texts for piece in text]))
        return [sum(next(scores)[0] for _ in text) for text in texts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        raise InputError("a task must score given texts, got one that lets the model write")
