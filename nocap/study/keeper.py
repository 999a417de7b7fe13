"""Writes a study's ledger while it is carried out. What a killed command could not write the next one writes, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.judge.verdict import Reason, Verdict
from nocap.launch.grid import Cell
from nocap.launch.runner import last_step
from nocap.store.find import of_identity
from nocap.store.record import digest, read_json
from nocap.store.runs import Record, dig, number
from nocap.study.cells import Wanted
from nocap.study.ledger import ENDED, Ledger, Line, append, writable
from nocap.study.plan import StudyPlan
from nocap.study.registration import hashes
from nocap.study.sessions import FILE

FIGURE = {"steps": "tokens_per_s", "parts": "step_ms", "lengths": "exponent", "decoding": "decode_tokens_per_s"}  # of a session of a kind
SLOT = {"run": ("arm", "seed", "short"), "session": ("what", "seed", "repeat")}  # what is measured once
RESULT = {"run": ("identity", "started"), "session": ("key", "started")}  # one measurement of it


class Keeper:
    """Of a study at one scale on this machine. With `writes=False`, or where the study's folder cannot be written, it writes nothing."""

    def __init__(self, plan: StudyPlan, *, writes: bool) -> None:
        t = plan.trainer
        self.path, self.sessions, self.hashes = plan.ledger, plan.folder / "sessions", hashes(plan) if writes else {}
        self.writes = writes and self.path is not None and writable(self.path)
        self.runs = plan.runs
        place = digest(str(plan.folder.absolute()))[:8]
        self.common = {"machine": hardware.describe(t.device, t.threads)["fingerprint"], "folder": place, "scale": plan.scale}

    def _mine(self, lines: Sequence[Line]) -> list[Line]:
        """Those of this machine and scale."""
        return [line for line in lines if all(line[key] == self.common[key] for key in ("machine", "scale"))]

    def _append(self, find: Callable[[Ledger], Sequence[Line]]) -> None:
        if self.writes and self.path is not None:
            append(self.path, find, self.common)

    def _add(self, lines: Sequence[Line], *, once: Sequence[str]) -> None:
        """Those of which no line of their event has the same of these keys."""

        def new(ledger: Ledger) -> list[Line]:
            known = {(line["event"], *_pick(line, once)) for line in self._mine(ledger.of(lines[0]["event"]))}
            return [line for line in lines if (line["event"], *_pick(line, once)) not in known]

        self._append(new)

    # --- what is declared, and what was said ---------------------------------------------------------------------------------------

    def register(self) -> None:
        """Before anything of the study runs. A claim of which anything was changed is another registration."""

        def new(ledger: Ledger) -> list[Line]:
            known = {line["hash"] for line in ledger.of("registration")}
            return [{"event": "registration", "claim": name, "hash": one} for name, one in self.hashes.items() if one not in known]

        self._append(new)

    def budget(self, hours: float, steps: int) -> None:
        """How many steps the hours were found to allow."""
        self._add([{"event": "budget", "budget_h": hours, "steps": steps}], once=("budget_h", "steps"))

    def look(self, claim: str, verdict: Verdict) -> None:
        """The analysis of a claim, and again where it says something else now. Its first has three pairs."""
        number = verdict.primary.analysis

        def new(ledger: Ledger) -> list[Line]:
            said = {line["look"]: line for line in self._mine(ledger.of("look", hash=self.hashes[claim]))}
            says = {"n": verdict.n, "word": verdict.word.value}
            if number in said and says == {key: said[number][key] for key in says}:
                return []
            return [{"event": "look", "claim": claim, "hash": self.hashes[claim], "look": number, **says}]

        if verdict.reason is not Reason.missing:
            self._append(new)

    # --- runs ------------------------------------------------------------------------------------------------------------------------

    def watch(self, run: Wanted, cell: Cell, event: str) -> None:
        """A run begins, or did not end with a result."""
        if event not in ENDED:
            step = 0 if event == "begun" else last_step(cell.plan.run_dir)
            line = _run(run, cell.plan.identity, status=event, started="", step=step, val_loss=None)
            self._add([line], once=("arm", "seed", "short", "identity", "status"))

    def ran(self, records: Sequence[tuple[Wanted, Record]]) -> None:
        """All runs that have a result, also those that something else trained."""
        self._result([_of_record(run, record) for run, record in records])

    # --- sessions --------------------------------------------------------------------------------------------------------------------

    def timed(self) -> None:
        """All sessions that have a result."""
        found = [line for path in sorted(self.sessions.glob("[!.]*.json")) if (line := _session(path)) is not None]
        self._result(sorted(found, key=lambda line: str(line["started"])))

    # --- what was there before -------------------------------------------------------------------------------------------------------

    def _result(self, lines: Sequence[Line]) -> None:
        """Add results that are not known, each with a line where its slot had another result."""

        def new(ledger: Ledger) -> list[Line]:
            found = list[Line]()
            event = lines[0]["event"] if lines else "run"
            slot, result = SLOT[event], RESULT[event]
            there = [line for line in self._mine(ledger.of(event)) if line.get("status", ENDED[0]) in ENDED]
            for line in lines:
                before = [one for one in there if _pick(one, slot) == _pick(line, slot)]
                if any(_pick(one, result) == _pick(line, result) for one in before):
                    continue
                found.append(line)
                if before:
                    was = {key: before[-1][key] for key in (*result, *({"val_loss", "measured"} & before[-1].keys()))}
                    found.append({"event": "repeat", "of": event, **_named(line), "was": was})
                there.append(line)
            return found

        self._append(new)

    def missing(self) -> None:
        """Each result of this output folder that is known and no longer there."""

        def new(ledger: Ledger) -> list[Line]:
            found = list[Line]()
            mine = [line for line in self._mine(ledger.lines) if line["folder"] == self.common["folder"] and line["event"] != "repeat"]
            for event in SLOT:
                of = [line for line in mine if line.get("of", line["event"]) == event and line.get("status", ENDED[0]) in ENDED]
                last = {_pick(line, (*SLOT[event], RESULT[event][0])): line for line in of}
                gone = [line for line in last.values() if line["event"] != "deletion" and not self._is_there(line)]
                found += [{"event": "deletion", "of": event, **_named(line)} for line in gone]
            return found

        self._append(new)

    def _is_there(self, line: Line) -> bool:
        if line["event"] == "run":
            return of_identity(self.runs, line["identity"]) is not None
        again = f"-{line['repeat']}" if line["repeat"] > 1 else ""
        return (self.sessions / f"{line['what']}-s{line['seed']}-{line['key']}{again}.json").exists()


def _pick(line: Line, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(line[key] for key in keys)


def _named(line: Line) -> dict[str, Any]:
    """What says which run or session it is."""
    return {key: line[key] for key in ("arm", "seed", "short", "identity", "what", "repeat", "key", "arms") if key in line}


def _run(run: Wanted, identity: str, *, status: str, started: str, step: int, val_loss: float | None) -> Line:
    names = {"arm": run.arm, "seed": run.seed, "short": run.short, "identity": identity}
    return {"event": "run", **names, "status": status, "started": started, "step": step, "val_loss": val_loss}


def _of_record(run: Wanted, record: Record) -> Line:
    step = int(record.number("steps") or 0)
    return _run(run, record.identity, status=record.status, started=record.started, step=step, val_loss=record.val_loss)


def _session(path: Path) -> Line | None:
    """Of a session's file; None of one that measures nothing for a verdict, or that cannot be read."""
    try:
        found = read_json(path) or {}
    except ValueError:
        return None  # the study names it, if it needs it
    figure, seed, started = FIGURE.get(str(found.get("kind"))), found.get("seed"), found.get("started")
    seen = dig(found, "measured", "arms")
    name = FILE.fullmatch(path.name)
    if name is None or figure is None or type(seed) is not int or not isinstance(started, str) or not isinstance(seen, dict):
        return None
    measured = {arm: number(dig(one, figure)) for arm, one in seen.items()}
    names = {"what": name["what"], "seed": seed, "repeat": int(name["repeat"] or 1), "key": name["key"], "arms": list(seen)}
    return {"event": "session", **names, "started": started, "measured": measured}
