"""Write small logs in the form of each program that `nocap.compare` reads: two arms, three seeds.

    python docs/sample_logs.py FOLDER

The losses are made up; the forms are those of the programs.
"""

import csv
import json
import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path

ARMS = {"base": 0.0, "idea": 0.05}
STEPS = range(0, 201, 50)
RUNS = [(arm, seed) for arm in ARMS for seed in range(3)]


def losses(arm: str, seed: int) -> dict[int, float]:
    """Return step → validation loss."""
    noise = 0.003 * seed + 0.002 * seed * (arm == "idea")
    return {step: 4.0 - step / 200 - ARMS[arm] + noise for step in STEPS}


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def table(path: Path, names: list[str], rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


# What programs print: a line a validation, in a file ARM/seedN.log
PRINTED = {
    "nanogpt": "step {step}: train loss {loss:.4f}, val loss {loss:.4f}\n",
    "torchtitan": "[titan] 12:00:00,000 - root - INFO - validate step: {step}  loss: {loss:.4f}  "
    "tps: 9\n",
    "nanochat": "Step {step:05d} | Validation bpb: {loss:.6f}\n",
    "llmc": "s:{step} tel:{loss:.4f}\n",
    "modded": "step:{step}/200 val_loss:{loss:.4f} train_time:{step}00ms step_avg:100.00ms\n",
    "litgpt": "Epoch 1 | iter {step} step {step} | loss train: {loss:.3f}, val: n/a\n"
    "iter {step}: val loss {loss:.4f}, val time: 9.00 ms\n",
    "parameter_golf": "step:{step}/200 val_loss:{loss:.4f} val_bpb:{loss:.4f} train_time:{step}ms "
    "step_avg:1.00ms\n",
    "hf_printed": "{{'eval_loss': '{loss:.4g}', 'epoch': '{step}'}}\n",
}
ENDS = {
    "parameter_golf": "final_int8_zlib_roundtrip_exact val_loss:{loss:.8f} val_bpb:{loss:.8f}\n",
    "hf_printed": "{{'train_runtime': '60', 'train_loss': '3', 'epoch': '200'}}\n",
}


def printed(root: Path) -> None:
    for program, line in PRINTED.items():
        for arm, seed in RUNS:
            curve = losses(arm, seed)
            text = "".join(line.format(step=step, loss=loss) for step, loss in curve.items())
            text += ENDS.get(program, "").format(loss=curve[200])
            written(root / program / arm / f"seed{seed}.log", text)


def tables(root: Path) -> None:
    for number, (arm, seed) in enumerate(RUNS):
        curve = losses(arm, seed)
        points = [[step, loss] for step, loss in curve.items()]
        table(root / "csv" / f"{arm}_seed{seed}.csv", ["step", "val_loss"], points)
        written(
            root / "jsonl" / arm / f"seed{seed}.jsonl",
            "".join(
                json.dumps({"step": step, "val": {"loss": loss}}) + "\n" for step, loss in points
            ),
        )
        version = root / "lightning" / "lightning_logs" / f"version_{number}"
        table(
            version / "metrics.csv",
            ["epoch", "step", "val_loss"],
            [[0, *point] for point in points],
        )
        written(version / "hparams.yaml", f"arm: {arm}\nseed: {seed}\n")
        epochs = [[epoch, loss, loss] for epoch, loss in enumerate(curve.values())]
        table(root / "keras" / arm / f"seed{seed}.csv", ["epoch", "loss", "val_loss"], epochs)
        history = [["", call, 9.5, *point] for call, point in enumerate(points)]
        names = ["", "_step", "_timestamp", "iter", "val/loss"]
        table(root / "wandb_history" / f"{arm}-seed{seed}.csv", names, history)
        board = root / "tensorboard_csv" / f"run-{arm}_seed{seed}-tag-val_loss.csv"
        table(board, ["Wall time", "Step", "Value"], [[9.5, *point] for point in points])
        rows = [{"step": step, "eval_loss": loss, "epoch": step / 100} for step, loss in points]
        state = {"best_metric": None, "global_step": 200, "max_steps": 200, "log_history": rows}
        written(
            root / "hf" / arm / f"seed{seed}" / "trainer_state.json", json.dumps(state, indent=2)
        )
    ends = [
        [f"{arm}-seed{seed}", "finished", seed, 200, losses(arm, seed)[200]] for arm, seed in RUNS
    ]
    table(root / "wandb_table" / "export.csv", ["Name", "State", "seed", "iter", "val/loss"], ends)
    names = ["iter"]
    for arm, seed in RUNS:
        metric = f"{arm}-seed{seed} - val/loss"
        names += [metric, f"{metric}__MIN", f"{metric}__MAX"]
    rows_of_panel = [
        [step, *(losses(*run)[step] for run in RUNS for _ in range(3))] for step in STEPS
    ]
    table(root / "wandb_panel" / "export.csv", names, rows_of_panel)


def mlflow(root: Path) -> None:
    (root / "mlflow").mkdir(parents=True, exist_ok=True)
    (root / "mlflow" / "mlflow.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(root / "mlflow" / "mlflow.db")) as base:
        base.executescript(
            "CREATE TABLE runs (run_uuid, name, status, start_time, lifecycle_stage);"
            "CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);"
            "CREATE TABLE params (key, value, run_uuid);"
        )
        for number, (arm, seed) in enumerate(RUNS):
            base.execute(
                "INSERT INTO runs VALUES (?, 'a', 'FINISHED', ?, 'active')", (number, number)
            )
            settings = [("arm", arm, number), ("seed", str(seed), number)]
            base.executemany("INSERT INTO params VALUES (?, ?, ?)", settings)
            points = [(loss, number, step) for step, loss in losses(arm, seed).items()]
            base.executemany("INSERT INTO metrics VALUES ('val_loss', ?, 1, ?, ?, 0)", points)
        base.commit()


def tensorboard(root: Path) -> None:
    for arm, seed in RUNS:
        path = (
            root / "tensorboard" / arm / f"seed{seed}" / "events.out.tfevents.1795803088.host.1.0"
        )
        events = [b"\x1a\x0dbrain.Event:2"]
        for step, loss in losses(arm, seed).items():
            value = b"\x0a\x08val_loss" + b"\x15" + struct.pack("<f", loss)
            summary = b"\x0a" + bytes([len(value)]) + value
            events.append(b"\x10" + varint(step) + b"\x2a" + bytes([len(summary)]) + summary)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(map(framed, events)))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def framed(event: bytes) -> bytes:
    """Return an event with its length and two checksums, as TensorFlow stores records."""
    size = struct.pack("<Q", len(event))
    return size + checksum(size) + event + checksum(event)


def checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


if __name__ == "__main__":
    for write in (printed, tables, mlflow, tensorboard):
        write(Path(sys.argv[1]))
