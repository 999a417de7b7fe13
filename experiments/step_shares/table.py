"""The notes' shares beside the measured ones: reads what `nocap.profile --json` wrote, keeps its sums here, prints the README's table.

python experiments/step_shares/table.py [FOLDER with mha-512.json, flash-512.json, … and curve.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = [f"{attention}-{T}" for T in (512, 1024) for attention in ("mha", "flash")]
MB = 1e6 / 2**20  # MiB

ATTENTION = ("qkv", "rotary", "scores", "attention_out")
MLP = ("mlp_up", "activation", "mlp_down")

Facts = dict[str, Any]


def keep(folder: Path) -> None:
    """Copy the records without their rows by module, which are most of their size."""
    for name in [*NAMES, "curve"]:
        found = json.loads((folder / f"{name}.json").read_text())
        found["hardware"].pop("host")
        short = {key: value for key, value in found.items() if key not in ("rows", "layers")}
        (HERE / f"{name}.json").write_text(json.dumps(short, indent=1) + "\n")


def share(found: Facts, parts: tuple[str, ...], of: tuple[str, ...] | None = None) -> str:
    ms = {row["part"]: row["ms"] for row in found["parts"]}
    whole = found["step"]["ms"] if of is None else sum(ms[part] for part in of)
    return f"{sum(ms[part] for part in parts) / whole:.1%}"


def megabytes(found: Facts, key: str) -> str:
    return f"{found['memory_mib']['measured'][key] / MB:,.0f} MB"


def a_layer(found: Facts, parts: tuple[str, ...]) -> str:
    kept = found["memory_mib"]["measured"]["kept"]
    return f"{sum(kept.get(part, 0) for part in parts) / MB / found['config']['model']['n_layer']:,.1f} MB"


def mlp_parameters(found: Facts) -> str:
    m = found["config"]["model"]
    return f"{2 * found['config']['mlp']['expansion'] * m['d_model'] ** 2 / 1e6:.2f}M (counted)"


def block(found: Facts) -> tuple[str, ...]:
    return (*ATTENTION, *MLP, "norm", "residual")


ROWS = [
    ("A10", "attention", "40–50%", lambda f: share(f, ATTENTION)),
    ("A10", "MLP", "30–40%", lambda f: share(f, MLP)),
    ("A10", "embedding", "2–3%", lambda f: share(f, ("embedding",))),
    ("A10", "head", "5–8%", lambda f: f"{share(f, ('head',))}, with the loss {share(f, ('head', 'loss'))}"),
    ("A10", "norms, of a block", "5–10%", lambda f: share(f, ("norm",), block(f))),
    ("A11", "blocks", "85–90%", lambda f: share(f, block(f))),
    ("A11", "of attention: QKV", "15%", lambda f: share(f, ("qkv",), ATTENTION)),
    ("A11", "of attention: scores, weighted sum", "60%", lambda f: share(f, ("scores",), ATTENTION)),
    ("A11", "of attention: output projection", "15%", lambda f: share(f, ("attention_out",), ATTENTION)),
    ("A11", "of attention: rotary and the rest", "10%", lambda f: share(f, ("rotary",), ATTENTION)),
    ("A11", "of MLP: up", "45%", lambda f: share(f, ("mlp_up",), MLP)),
    ("A11", "of MLP: GELU", "10%", lambda f: share(f, ("activation",), MLP)),
    ("A11", "of MLP: down", "45%", lambda f: share(f, ("mlp_down",), MLP)),
    ("A12", "parameters", "500 MB", lambda f: megabytes(f, "parameters")),
    ("A12", "AdamW's state", "1,000 MB", lambda f: megabytes(f, "optimizer")),
    ("A12", "gradients", "500 MB", lambda f: megabytes(f, "gradients")),
    ("A12", "activations", "2,000 MB → 600 MB with flash", lambda f: megabytes(f, "activations")),
    ("A12", "a layer's attention matrices", "70 MB", lambda f: a_layer(f, ("scores",))),
    ("A12", "a layer's MLP", "40 MB", lambda f: a_layer(f, MLP)),
    ("A12", "a layer's norms and residual stream", "12 MB", lambda f: a_layer(f, ("norm", "residual"))),
    ("A12", "an MLP's parameters", "2.36M", mlp_parameters),
    ("", "peak of all tensors", "4 GB → 2.5 GB with flash (A4)", lambda f: megabytes(f, "peak")),
    (
        "",
        "step, CPU time by the profile / without it",
        "",
        lambda f: f"{f['step']['ms'] / 1e3:.1f} / {f['step']['plain']['cpu_ms'] / 1e3:.1f} s",
    ),
    ("", "attributed", "", lambda f: f"{f['step']['attributed_ms'] / f['step']['ms']:.1%}"),
]


def main() -> None:
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]))
    found = {name: json.loads((HERE / f"{name}.json").read_text()) for name in NAMES}
    print("| claim | of a step | notes | " + " | ".join(name.replace("-", ", T=") for name in NAMES) + " |")
    print("|" + "---|" * (3 + len(NAMES)))
    for claim, what, notes, measured in ROWS:
        print(f"| {claim} | {what} | {notes} | " + " | ".join(measured(found[name]) for name in NAMES) + " |")
    print()
    curve = json.loads((HERE / "curve.json").read_text())["curve"]
    print("| attention | " + " | ".join(f"T={T}" for T in curve[0]["T"]) + " | exponent | a step's |")
    print("|" + "---|" * (len(curve[0]["T"]) + 3))
    for row in curve:
        fits = [f"{row[key]['exponent']:.2f} [{row[key]['low']:.2f}, {row[key]['high']:.2f}]" for key in ("attention", "step")]
        name = row["name"] + (f", window {row['window']}" if "window" in row else "")
        print(f"| {name} | " + " | ".join(f"{ms:.3g} ms" for ms in row["attention_ms"]) + " | " + " | ".join(fits) + " |")


if __name__ == "__main__":
    main()
