"""The whole configuration tree: one key a group of options, without torch, Hydra or OmegaConf."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from nocap import outside
from nocap.config.keys import check_keys, counting, key, require
from nocap.config.option import Option, declared, require_default, unread
from nocap.config.trainer import Trainer
from nocap.options.attention import Attention
from nocap.options.data import Data
from nocap.options.ideas import STEP_JOINTS, STREAM_JOINTS, Idea, overrides
from nocap.options.mlp import Mlp
from nocap.options.model import Model
from nocap.options.norm import Norm
from nocap.options.objective import Objective
from nocap.options.optimizer import Optimizer
from nocap.options.position import Position
from nocap.options.schedule import Schedule
from nocap.options.tokenizer import Tokenizer
from nocap.options.tracker import Tracker


@dataclass(kw_only=True, slots=True)
class Store:
    """More files in a run's folder."""

    # store the uncommitted changes of nocap's code as uncommitted.diff; they may hold secrets
    diff: bool = False


@dataclass(kw_only=True, slots=True)
class Run:
    """One training of one resolved config with one seed."""

    # first, and the model next: other groups' defaults follow from theirs, and a wrong value is
    # named at its source
    trainer: Trainer
    model: Model
    attention: Attention
    mlp: Mlp
    norm: Norm
    position: Position
    optimizer: Optimizer
    schedule: Schedule = key(step=False)
    objective: Objective
    # any number of them, by the names of their yamls; see `nocap.options.ideas`
    ideas: dict[str, Idea]
    data: Data = key(step=False)
    tokenizer: Tokenizer = key(losses=True)
    tracker: Tracker = key(identity=False, step=False)
    # what is kept beside the record
    store: Store = key(identity=False, step=False, default_factory=Store)
    # seed of the first weights and of the order of the data
    seed: int = key(ge=0, lt=2**63, step=False)
    # folder of the results, with a folder runs and a folder grids in it
    output_dir: str = key(identity=False, step=False)
    # folder of prepared data and compiled code; null: $NOCAP_CACHE, or nocap in your cache folder
    cache_dir: str | None = key(identity=False, step=False)

    def __post_init__(self) -> None:
        # one order, whatever the command line's: the same ideas are the same run
        self.ideas = dict(sorted(self.ideas.items()))
        # of the model first: the defaults of the trainer follow from it
        parts = ("", self), ("model", self.model), ("trainer", self.trainer), *self.options()
        for place, part in parts:
            check_keys(place, part)
        require(bool(self.output_dir), "output_dir", "be a path", repr(self.output_dir))
        for name, option in self.options():
            group = name.partition(".")[0]
            chosen = outside.options(group).get(option.kind)
            rule = f"not be set directly (choose another option with {group}=…)"
            require(chosen is type(option), f"{name}.kind", rule, repr(option.kind))
            option.check(self)
        self._refuse_unread()
        self._check_documents()
        self._check_arranged()
        self._check_batch()
        self._check_graphs()
        self._check_trackers()

    def tokens_before(self, step: int) -> int:
        """Return the tokens that the steps before this one read, over all devices."""
        return step * self.trainer.batch_tokens

    def in_the_end(self) -> Run:
        """Return the run whose every step is as this one's last steps are: for what a step
        costs."""
        last = {}
        for name, idea in self.ideas.items():
            in_the_end = idea.in_the_end()
            if in_the_end is not None:
                last[name] = in_the_end
        if last == self.ideas:
            return self
        return self.varied(ideas=last)

    def varied(self, **parts: Any) -> Run:
        """Return the run with other parts for nocap's own use: an option that needs an idea is not
        asked again whether it is there."""
        run = copy.copy(self)
        for name, part in parts.items():
            setattr(run, name, part)
        return run

    @property
    def document_token(self) -> int | None:
        """Return the token with which a document begins; None: there are no documents."""
        return self.tokenizer.end_of_text if self.data.has_documents else None

    @property
    def draws(self) -> bool:
        """Return whether two forwards of the same tokens are meant to differ."""
        return any(option.random for _, option in self.options())

    def options(self) -> Iterator[tuple[str, Option]]:
        """Yield each option of the run, by its place in the config."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Option):
                yield f.name, value
        for name, idea in self.ideas.items():
            yield f"ideas.{name}", idea

    def outside_files(self) -> list[outside.File]:
        """List the files from outside that define the run's options."""
        modules = set[str]()
        for _, option in self.options():
            modules.update(cls.__module__ for cls in type(option).__mro__)
        return outside.used(modules)

    def _refuse_unread(self) -> None:
        """Refuse keys that another option of their group would read, and the chosen one does
        not."""
        for name, option in self.options():
            for full_key in unread(option):
                part = getattr(self, full_key.partition(".")[0])
                why = (
                    f"with {name}.kind={option.kind}, which does not use this key (an option of "
                    "your own must list in READS each key that it uses)"
                )
                require_default(part, full_key, why)

    def _check_documents(self) -> None:
        """Refuse documents where the data have none, or where something looks across their ends."""
        if self.position.restart:
            self._require_documents("position.restart")
        if not self.data.document_mask:
            return
        name = "data.document_mask"
        self._require_documents(name)
        kind = self.attention.kind
        takes = declared(self.attention, "documents", of=("build", "mixer")) is not None
        rule = f"be false with attention.kind={kind}, which does not support documents"
        require(takes, name, rule, True)
        for idea, option in self.ideas.items():
            rule = f"be false with ideas.{idea}, which may mix documents (its PER_TOKEN is False)"
            is_own = option.PER_TOKEN or not overrides(option, *STREAM_JOINTS)
            require(is_own, name, rule, True)

    def _require_documents(self, name: str) -> None:
        """Refuse a key that is about documents where nothing says how one begins."""
        data = self.data
        rule = f"be false with data.kind={data.kind}, which has no documents (has_documents=False)"
        require(data.has_documents, name, rule, True)
        kind = self.tokenizer.kind
        rule = f"be false with tokenizer.kind={kind}, which has no token end_of_text"
        require(self.tokenizer.end_of_text is not None, name, rule, True)

    def _check_arranged(self) -> None:
        """Refuse two ideas that order the training data: the second would undo the first."""
        arranging = [name for name, idea in self.ideas.items() if overrides(idea, "arrange")]
        rule = "hold at most one idea that reorders the training data"
        require(len(arranging) <= 1, "ideas", rule, ", ".join(arranging))

    def _check_batch(self) -> None:
        t = self.trainer
        seq_len = self.model.seq_len
        unit = t.micro_batch * seq_len
        of_all = unit * t.devices
        rule = "be divisible by trainer.micro_batch × model.seq_len"
        factors = f"{t.micro_batch} × {seq_len}"
        batch_rule = f"{rule} × trainer.devices = {factors} × {t.devices} = {of_all}"
        require(t.batch_tokens % of_all == 0, "trainer.batch_tokens", batch_rule, t.batch_tokens)
        val_rule = f"{rule} = {factors} = {unit}"
        require(t.val_tokens % unit == 0, "trainer.val_tokens", val_rule, t.val_tokens)

    def _check_graphs(self) -> None:
        """Refuse CUDA graphs of what changes: a graph repeats what Python decided when it was
        recorded, and what was drawn."""
        if not self.trainer.cuda_graphs:
            return
        place = "trainer.cuda_graphs"
        require(
            not self.draws,
            place,
            "be false, because an option of this run draws random numbers",
            True,
        )
        for name, idea in self.ideas.items():
            rule = f"be false with ideas.{name}, which runs code between steps"
            require(not overrides(idea, *STEP_JOINTS), place, rule, True)

    def _check_trackers(self) -> None:
        """Refuse keys of a tracker that is named beside another."""
        own = self.tracker.kind
        for kind in self.tracker.also:
            found = outside.find("tracker", kind)
            fits = found is not None and _needs_no_keys(found) and kind != own
            able = []
            for other, cls in outside.options("tracker").items():
                if other != own and _needs_no_keys(cls):
                    able.append(other)
            rule = (
                f"list any of {', '.join(able)}, each once (not {own}, nor one that needs settings)"
            )
            is_once = self.tracker.also.count(kind) == 1
            require(fits and is_once, "tracker.also", rule, kind)

    def that_count(self, what: str, plain: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of the run's plain form that count for `what`: see
        `nocap.config.keys.COUNTS`."""
        return counting(self, what, plain)


def _needs_no_keys(option: type[Option]) -> bool:
    return not any(f.default is f.default_factory is MISSING for f in fields(option))


def added_keys() -> dict[str, object]:
    """Return `group.key` of every key of an option that was added later, with its default."""
    defaults = dict[str, object]()
    for f in fields(Run):
        if f.name in outside.groups():
            for kind in outside.options(f.name).values():
                added = [own for own in fields(kind) if own.metadata.get("added")]
                defaults |= {f"{f.name}.{own.name}": own.default for own in added}
    return defaults


def keys_that_count(what: str) -> list[str]:
    """List `group.key` of every key that is declared to count for `what`, of all options and the
    trainer."""
    full_keys = dict[str, None]()
    for f in fields(Run):
        kinds: list[Any] = []
        if f.name in outside.groups():
            kinds += outside.options(f.name).values()
        elif f.name == "trainer":
            kinds.append(Trainer)
        for kind in kinds:
            for own in fields(kind):
                if f.metadata.get(what) or own.metadata.get(what):
                    full_keys[f"{f.name}.{own.name}"] = None
    return list(full_keys)
