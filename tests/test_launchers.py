"""Where a grid's cells run: a pool of local devices, and a cluster's jobs. Whatever the place, the
records are the same."""

import ctypes
import importlib
import json
import os
import re
import signal
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from nocap import config
from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.flags import GridFlags
from nocap.config.trainer import Device, Precision
from nocap.launch import attempt, workers
from nocap.launch.chosen_launcher import check_flags, plan_grid_for
from nocap.launch.plan import plan
from nocap.launch.this_machine import ThisMachine, one_at_a_time
from nocap.options.launcher import OfCluster, Target
from tests.attempts import wait_until
from tests.conftest import SMALL
from tests.grids import ARMS, CELL, Background, records, summaries
from tests.grids import small_grid as small_grid
from tests.in_process import TINY, planned, start
from tests.tools import slurm

needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed: pip install 'nocap[slurm]'"
)


def run(*words):
    return compose([*SMALL, *words])


def taken(pool, *runs):
    """What each of these runs gets, which all go on."""
    units = []
    for each in runs:
        units.append(free := pool.free(each))
        if free is not None:
            attempt = SimpleNamespace(plan=SimpleNamespace(run=each), units=free, over=False)
            pool.attempts.append(attempt)
    return units


def test_a_pool_gives_each_cell_devices_of_its_own():
    single = run("trainer.threads=1")
    two = run("trainer.threads=2")
    on_gpus = run()
    on_gpus.trainer.device = Device.cuda
    on_gpus.trainer.devices = 2
    units = {Device.cpu: ["0", "1", "2", "5", "6"], Device.cuda: ["3", "4", "GPU-ab", "7", "8"]}
    pool = ThisMachine(units=units)
    expected = [["0", "1"], ["2", "5"], None, ["6"]]
    assert taken(pool, two, two, two, single) == expected
    pool.attempts[0].over = True
    given = taken(pool, two, on_gpus, on_gpus, on_gpus)
    assert given == [["0", "1"], ["3", "4"], ["GPU-ab", "7"], None]
    at_once = [pool.at_once(run(f"trainer.threads={n}")) for n in (1, 2, 5, 64)]
    assert at_once == [5, 2, 1, 1]
    assert pool.at_once(run("trainer.threads=1", "trainer.devices=2")) == 2


@pytest.mark.parametrize(("jobs", "cores", "n"), [(2, 8, 2), (None, 3, 3)])
def test_a_pool_has_room_for_so_many_jobs(jobs, cores, n, monkeypatch):
    """And says why it is a pool of one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    units = {Device.cpu: [str(core) for core in range(cores)], Device.cuda: []}
    pool = ThisMachine(jobs=jobs, units=units)
    assert pool.at_once(run()) == n
    expected = [False] * n + [True] * (4 - n)
    free = [units is None for units in taken(pool, *[run()] * 4)]
    assert free == expected
    assert taken(serial := one_at_a_time(), run(), run()) == [[], None]
    assert serial.describe([run()]) is None
    two_units = {Device.cpu: ["0", "1"], Device.cuda: []}
    two = ThisMachine(jobs=None, units=two_units)
    hint = "(trainer.threads=2; trainer.threads=1 makes room for 2)"
    hint += "; nocap ignores OMP_NUM_THREADS=1; trainer.threads=2 sets the threads"
    assert two.describe([run("trainer.threads=2")]) == f"pool: 1 at once, 2 of 2 cores each {hint}"
    assert two.describe([run("trainer.threads=1")]) == "pool: 2 at once, 1 of 2 cores each"


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no process can be kept on a core here"
)
def test_workers_stay_on_the_cores_or_gpus_that_their_cell_has(tmp_path, monkeypatch):
    this = planned(tmp_path / "out")
    before = os.sched_getaffinity(0)
    given = []

    def popen(command, *, env, **more):
        given.append(env.get("CUDA_VISIBLE_DEVICES"))
        return SimpleNamespace(pid=0)  # this process

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=popen))
    monkeypatch.setattr(attempt, "write_record_head", lambda plan, stage: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with attempt.hold(this) as lease:
        try:
            unit = str(min(before))
            attempt.Attempt(this, lease, units=[unit]).start_workers(0.0)
            assert os.sched_getaffinity(0) == {min(before)}
        finally:
            os.sched_setaffinity(0, before)
        this.run.trainer.device = Device.cuda
        for units in (["GPU-ab", "7"], []):
            attempt.Attempt(this, lease, units=units).start_workers(0.0)
    assert os.sched_getaffinity(0) == before
    assert given == [None, "GPU-ab,7", None]


REFUSED = [
    (("hydra/launcher=pool", "hydra.launcher.jobs=0"), "hydra.launcher.jobs must be at least 1"),
    (("hydra/launcher=pool", "hydra.launcher.jbs=1"), "hydra.launcher.jbs is no key"),
    (("hydra.sweeper.max_batch_size=1",), "hydra.sweeper.max_batch_size must not be set"),
    (("hydra.sweep.dir=mine",), "hydra.sweep.dir must not be set"),
    (("--detach",), "--detach works only with a launcher that has a queue"),
    (
        ("--fail-fast", "hydra/launcher=slurm"),
        "--fail-fast does not work with hydra/launcher=slurm, because a queue starts the cells",
    ),
    (
        ("hydra/launcher=ray", "hydra.launcher.target.name=Other", "--plan"),
        "hydra.launcher.target must state the machine's device, and",
    ),
]


@pytest.mark.parametrize(
    ("words", "expected"),
    REFUSED,
    ids=["jobs", "key", "sweeper", "folder", "detach", "fail-fast", "target"],
)
def test_what_a_launcher_cannot_run_is_refused_in_a_line(tmp_path, here, words, expected):
    done = here("--multirun", *CELL, "seed=0,1", *words)
    assert done.code == 2, done
    assert len(done.err.splitlines()) == 1, done
    assert expected in done.err, done
    assert not list(tmp_path.glob("outputs/runs"))


def test_a_queue_of_somebody_elses_is_named_by_its_own_launcher():
    class Pbs(OfCluster):
        has_queue = True

    launcher = Pbs(kind="pbs")
    check_flags(launcher, GridFlags(detach=True))
    with pytest.raises(ValueError, match="hydra/launcher=pbs, because a queue starts the cells"):
        check_flags(launcher, GridFlags(fail_fast=True))


# --- other machines -------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The state of a pretended Slurm."""
    for name, value in slurm.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "slurm" / "state"


@needs_submitit
@pytest.mark.gate
@pytest.mark.timeout(600)
# one array, and nothing was handed over again
def test_a_pool_and_slurm_give_the_same_records(small_grid, cluster, tmp_path, door, here):
    cores = len(os.sched_getaffinity(0))
    cases = (
        (("hydra/launcher=pool",), f"pool: {cores} at once, 1 of {cores} core"),
        (
            ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=two"),
            "4 finished; 4 trained now",
        ),
    )
    for launcher, said in cases:
        out = tmp_path / str(len(launcher))
        words = (*CELL, ARMS, "--multirun", "seed=0,1", f"output_dir={out}", *launcher)
        done = door(*words, timeout=300)
        assert done.code == 0, done
        assert done.err == "", done
        assert said in done.out, done
        assert records(out) == records(small_grid.out)
    assert "4 cells, 4 done, 0 to train" in here(*words).out
    paths = list(cluster.glob("submitted-*"))
    assert len(paths) == 1


@needs_submitit
@pytest.mark.gate
@pytest.mark.timeout(600)
def test_slurm_requeues_a_job_at_its_time_limit_and_it_resumes(cluster, tmp_path, door):
    out = tmp_path / "out"
    words = (
        *SMALL,
        "trainer.steps=100",
        "trainer.val_every=0",
        "trainer.checkpoint_every=50",
        "seed=0,1",
    )
    words = (*words, "hydra/launcher=slurm", "hydra.launcher.max_num_timeout=1")
    running = Background(out, *words)
    wait_until(
        lambda: any(path.stat().st_size for path in out.glob("runs/*-s0-*/metrics.jsonl")), "a row"
    )
    (cluster / "limit-1_0").touch()
    done = running.end()
    assert done.code == 0
    assert done.err == ""
    assert "2 cells, 0 done, 2 to train" in done.out
    expected = {0: ("finished", 2), 1: ("finished", 1)}
    ends = {s["seed"]: (s["status"], s["attempts"]) for s in summaries(out).values()}
    assert ends == expected


@needs_submitit
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_command_leaves_its_jobs_to_slurm_and_later_reports(cluster, tmp_path, door):
    out = tmp_path / "out"
    words = (
        *SMALL,
        "trainer.steps=200",
        "trainer.val_tokens=1024",
        "seed=0,1",
        "hydra/launcher=slurm",
    )
    running = Background(out, *words)
    wait_until(
        lambda: any(path.stat().st_size for path in out.glob("runs/*/metrics.jsonl")), "a row"
    )
    stopped = running.end(signal.SIGINT)
    assert stopped.code == 75, stopped
    assert "continues as Slurm's job 1_1" in stopped.out, stopped
    left = door("--multirun", "--detach", *words, f"output_dir={out}")
    assert left.code == 75, left
    assert "2 not started" in left.out, left
    assert "continues as Slurm's job 1_0" in left.out
    lines = left.out.splitlines()
    assert lines[-1].startswith("handed over")
    done = door("--multirun", *words, f"output_dir={out}", timeout=300)
    assert done.code == 0, done
    assert "2 finished" in done.out, done
    attempts = {s["attempts"] for s in summaries(out).values()}
    assert attempts == {1}
    paths = list(cluster.glob("submitted-*"))
    assert len(paths) == 1  # one array in all


# In place of Slurm's: jobs that never begin.
WAITING = {
    "sbatch": 'echo "Submitted batch job 7"',
    "sacct": 'printf "JobID|State|NodeList\\n7_0|PENDING|\\n7_1|PENDING|\\n"',
}
LEFT = ("--multirun", "--detach", *TINY, "seed=0,1", "hydra/launcher=slurm")


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Have a Slurm whose jobs wait."""
    for name, command in WAITING.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    (tmp_path / "bin" / "srun").symlink_to(tmp_path / "bin" / "sbatch")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@needs_submitit
@pytest.mark.parametrize("ended", [None, "failed", "preempted"])
def test_what_is_left_to_slurm_is_handed_over_however_it_ended_before(tmp_path, queue, here, ended):
    out = tmp_path / "out"
    if ended is not None:
        folder = planned(out, "seed=0").run_dir
        folder.mkdir(parents=True)
        text = json.dumps({"status": ended, "error": "of before"})
        (folder / "summary.json").write_text(text)
    done = here(*LEFT, f"output_dir={out}")
    assert done.code == 75
    assert done.err == ""
    assert "2 not started; 0 trained now" in done.out
    assert "continues as Slurm's job 7_0" in done.out
    lines = done.out.splitlines()
    assert lines[-1].startswith("Slurm has the jobs; ")


@needs_submitit
@pytest.mark.parametrize("flags", [["--detach"], []])
def test_jobs_that_slurm_refuses_are_not_handed_over(tmp_path, queue, here, flags):
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: no such account' >&2\nexit 1\n"
    )
    words = [word for word in LEFT if word != "--detach"]
    done = here(*flags, *words, f"output_dir={tmp_path / 'out'}")
    assert done.code == 1
    assert "handed over" not in done.out
    assert done.err.count("nocap: not finished: seed=") == 2
    assert done.err.count("(FailedJobError: sbatch: error: no such account)\n") == 2


@needs_submitit
def test_a_grid_that_has_ended_reports_though_it_is_left_to_slurm(tmp_path, queue, here):
    out = tmp_path / "out"
    for seed in (0, 1):
        start(planned(out, f"seed={seed}"))
    done = here(*LEFT, f"output_dir={out}")
    assert done.code == 0
    assert "2 cells, 2 done, 0 to train" in done.out
    assert "handed over" not in done.out
    assert "report: " in done.out


@needs_submitit
@pytest.mark.slow
@pytest.mark.skipif(bool(hardware.cuda_devices()), reason="the GPU is here")
def test_a_job_that_lands_on_another_machine_is_refused_and_names_both(cluster, tmp_path, door):
    numerics = ("trainer.threads", "trainer.device", "trainer.precision", "trainer.compile")
    small = [word for word in CELL if not word.startswith(numerics)]
    cases = (
        (
            ("device=cuda", "name='NVIDIA H100'", "torch='9.9'"),
            r"\(trainer\.device=cuda must have a ",
        ),
        (
            ("device=cpu", "name=Another", "threads=1", "precision=fp32", "compile=off"),
            r"\(.*hydra\.launcher\.target must describe the machine where the job runs .*, "
            r"1\), got .*, "
            r"Another, 1",
        ),
    )
    for target, refused in cases:
        words = (
            *(f"hydra.launcher.target.{word}" for word in target),
            f"output_dir={tmp_path / 'out'}",
        )
        done = door("--multirun", *small, "seed=0", "hydra/launcher=slurm", *words)
        assert done.code == 1, done
        assert "1 not started" in done.out, done
        assert re.search(f"not finished: .* {refused}", done.err), done.err


def test_a_target_plans_for_a_machine_that_is_not_here(tmp_path):
    words = [word for word in CELL if not word.startswith("trainer.")]
    with hardware.target("NVIDIA H100", "9.9"):
        parts = plan(
            compose([*words, "trainer.device=cuda", f"output_dir={tmp_path}"]), choices={}
        ).identity_parts
    assert parts["environment"] == {"torch": "9.9", "device": "NVIDIA H100", "threads": None}
    trainer = parts["config"]["trainer"]
    assert trainer["precision"] == "bf16"
    assert trainer["compile"] == "regional"


def driver_of_an_a100(name):
    """A CUDA driver with one GPU."""
    assert name == "libcuda.so.1"

    def count(number):
        number._obj.value = 1
        return 0

    def attribute(part, code, index):
        part._obj.value = {75: 8, 76: 0}[code]
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDeviceGetCount=count,
        cuDeviceGetName=lambda name, length, index: 0,
        cuDeviceGetAttribute=attribute,
    )


@pytest.mark.parametrize("target_first", [True, False])
def test_the_gpu_here_has_a_capability_and_decides_for_no_other_machine(monkeypatch, target_first):
    """Whichever is asked for first, in a process that has asked for neither."""
    monkeypatch.setattr(ctypes, "CDLL", driver_of_an_a100)
    monkeypatch.setattr(config, "hardware", hardware)
    monkeypatch.delitem(sys.modules, hardware.__name__)
    fresh = importlib.import_module(hardware.__name__)
    if not target_first:
        assert fresh.capability() == (8, 0)
    with fresh.target("NVIDIA H100 80GB HBM3", "9.9"):
        assert fresh.capability() is None
    assert fresh.capability() == (8, 0)


@pytest.mark.parametrize("word", ["trainer.cuda_graphs=true", "model.fp8_head=true"])
def test_a_grid_for_a_clusters_gpus_has_what_only_they_can_do(tmp_path, monkeypatch, word):
    """Planned on a machine without a GPU."""
    monkeypatch.setattr(hardware, "cuda_devices", lambda: ())
    words = [each for each in CELL if not each.startswith("trainer.precision=")]
    launcher = OfCluster(kind="a", target=Target(device=Device.cuda, name="NVIDIA H100"))
    cells = [(*words, word, f"output_dir={tmp_path}", f"seed={seed}") for seed in (0, 1)]
    grid = plan_grid_for(cells, ["seed"], launcher)
    assert len(grid.cells) == 2
    for cell in grid.cells:
        assert cell.plan.run.trainer.device is Device.cuda
        assert cell.plan.run.trainer.precision is Precision.bf16
        assert word in cell.overrides
