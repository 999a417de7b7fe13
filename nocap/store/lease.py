"""One holder of a folder, among all processes of all machines that share its file system.

A holder has a claim: a folder `.lease/TOKEN` with a file `holder`, whose modification time is its
last heartbeat.

* Claim, then look: a process first makes its own claim and then looks for others, so of two at once
  at least one sees the other. It stays only if none is alive. Both may give way, and try again
  after a random pause.
* Whether a claim is alive: on the same machine the kernel says so, at once and whatever the process
  ids, by the lock on the file `holder`. It is freed when the process dies, however it dies; a
  stopped process keeps it. Of a claim from another machine, and where there are no locks, the
  heartbeats decide. The last one is compared with a time that the file system gave just now: no
  machine's clock is read.
* Fencing: a process that takes over deletes the dead claim. A holder prepares each file in a folder
  inside its claim (`Lease.stage`) and brings it to its place by renaming it. A sleeper that wakes
  has nothing to rename from: its writing fails, whenever it wakes. Lines that are added to a file
  in place are no renames: `check` comes just before them.

What must hold of the file system: making a folder, renaming and listing are atomic and seen by
others at once, and times are the server's. Local disks and NFS 3 and 4 do so, with the usual
`async` export too; Lustre, GPFS, BeeGFS and CephFS as their POSIX promise says (not tried). Object
stores mounted as folders, and folders that a program synchronises, hold none of this: keep one
machine to a folder there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import random
import secrets
import shutil
import signal
import stat
import threading
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache
from pathlib import Path

from nocap.config.keys import require
from nocap.store.file_writing import open_without_link

NAME = ".lease"
HOLDER = "holder"
# between heartbeats: a thousand cells are seventy small requests a second to a file server
BEAT_S = 15.0
# without one, a claim of another machine is dead: more than the minute for which NFS may show old
# times
LEASE_S = 90.0
GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


class HeldError(ValueError):
    """Another process has the lease; `reason` names it, and the message the folder, too."""

    def __init__(self, folder: Path, *, holder: str) -> None:
        self.reason = f"{holder} is training there"
        super().__init__(f"{folder} must have one writer, and {self.reason}")


class LostError(ValueError):
    """Another process took the lease over while this one did not run."""


class Lease(AbstractContextManager["Lease"]):
    """A claim on a folder, which this process holds until `close` or its death."""

    def __init__(self, claim: Path) -> None:
        """Make the claim's folder, and say in it who holds it.

        Errors:
            FileNotFoundError: another process has cleared the place.
        """
        claim.mkdir()
        self.claim = claim
        self._closed = threading.Event()
        # open as long as the lease is held
        self._holder = open(claim / HOLDER, "x", encoding="utf-8")  # noqa: SIM115
        self.lost = False  # at the last heartbeat
        with suppress(OSError):  # a file system without locks: heartbeats decide
            fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._holder.write(f"process {os.getpid()} on {platform.node()} since {since}\n")
        self._holder.write(f"{machine()}\n")
        self._holder.flush()
        threading.Thread(target=self._beat_on, name="lease", daemon=True).start()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def beat(self) -> bool:
        """Say that this process lives. False: another one has taken over."""
        self.lost = self.lost or not _touch(self.claim / HOLDER)
        return not self.lost

    def stage(self) -> Path:
        """Return a new folder for what a worker prepares, which it gives to `check`. The worker
        before can bring nothing more to its place.

        Errors:
            LostError: another process has taken over.
        """
        if not self.beat():
            raise LostError(loss_line(self.claim))
        for old in self.claim.glob("stage-*"):
            _remove(old)
        stage_folder = self.claim / f"stage-{secrets.token_hex(6)}"
        stage_folder.mkdir()
        return stage_folder

    def close(self) -> None:
        """Give it back."""
        self._closed.set()
        with suppress(OSError):  # the disk, or there are other claims
            self._holder.close()  # first: NFS keeps a name for an open file
            _remove(self.claim)
            self.claim.parent.rmdir()

    def _beat_on(self) -> None:
        # they are the main thread's, which may wait with them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._closed.wait(BEAT_S) and not self.lost:
            self.beat()


def check(stage: Path | None) -> None:
    """Refuse to go on where a lease is lost; `None` is what is held without one, as in a
    measurement.

    Errors:
        LostError: another process has taken over.
    """
    if stage is not None and not _touch(stage):
        raise LostError(loss_line(stage.parent))


def loss_line(claim: Path) -> str:
    """Say that the lease of this claim is lost."""
    folder = claim.parents[1]
    return (
        f"another process took over {folder} while this process was stopped, and continues the run"
    )


def acquire(folder: Path, *, wait_s: float = 0.0) -> Lease:
    """Become the one holder of a folder, which exists.

    Errors:
        HeldError: another process holds it, and still does after `wait_s`.
        ValueError: something else is in the place of its leases.
    """
    root = folder / NAME
    deadline = time.monotonic() + wait_s
    while True:
        holder = _holder(root)
        longest_pause_s = 1.0
        if holder is None:
            lease = _claim(root)
            if lease is not None:
                return lease
            longest_pause_s = 0.1  # another process claims it at this moment
        elif time.monotonic() >= deadline:
            raise HeldError(folder, holder=holder)
        time.sleep(random.uniform(0.01, longest_pause_s))


def abandoned(folder: Path) -> bool:
    """Say whether there are claims, of which those who died are to be cleared away by `acquire`."""
    claims = folder / NAME
    return claims.is_dir() and not claims.is_symlink()


def is_held(folder: Path) -> bool:
    """Say whether a process has the lease, for people to read: a moment later it may be
    otherwise."""
    with suppress(OSError, ValueError):  # another user's folder, or none of leases
        return _holder(folder / NAME) is not None
    return False


@cache
def machine() -> str:
    """Return this machine since its start, whatever the host's name: containers have one each. Of a
    kernel that names no start: by that name."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


# --- claims ---------------------------------------------------------------------------------------


def _claim(root: Path) -> Lease | None:
    """Claim, look, and clear the dead away. None: another process claims the folder at this
    moment."""
    root.mkdir(exist_ok=True)
    # a holder who ends has cleared the place, or a new one took this for dead
    with suppress(FileNotFoundError), ExitStack() as undo:
        lease = undo.enter_context(Lease(root / secrets.token_hex(6)))
        if _holder(root, own=lease.claim) is None:
            for other in root.iterdir():
                if other != lease.claim:
                    _remove(other)
            # whoever looked while this process slept may have cleared it away
            os.utime(lease.claim / HOLDER)
            undo.pop_all()
            return lease
    return None


def _holder(root: Path, own: Path | None = None) -> str | None:
    """Return who has a claim that is alive, and not `own`.

    Errors:
        ValueError: something else is in the place of the claims.
    """
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(root.lstat().st_mode)
        rule = "be a folder, or not exist, because nocap notes in it which process works here"
        require(is_folder, str(root), rule, "something else")
        claims = [path for path in root.iterdir() if not path.name.startswith(".")]
        others = [claim for claim in claims if claim != own]
        if not others:
            return None
        os.utime(root)  # by the file system's own clock
        now = root.stat().st_mtime
        for claim in others:
            holder = _alive(claim, now)
            if holder is not None:
                return holder
    return None


def _alive(claim: Path, now: float) -> str | None:
    """Return who holds a claim that is alive; None: it is dead, or no claim. `now`: by the file
    system's clock."""
    with (
        # given back now, or nothing that nocap made
        suppress(FileNotFoundError, NotADirectoryError, ValueError),
        # asks the file server for the times of now
        open(claim / HOLDER, "r+", encoding="utf-8", opener=open_without_link) as file,
    ):
        name, machine_name, *_ = [*file.read().splitlines(), "", ""]
        if machine_name == machine():
            try:
                # shared: two that look do not take each other for the holder
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return name
            except OSError:  # a file system without locks: the heartbeats decide
                pass
        since_beat_s = now - os.fstat(file.fileno()).st_mtime
        if since_beat_s < LEASE_S:
            return name or "a process"
    return None


def _touch(path: Path) -> bool:
    """Ask the file server for a new time, where a mere look may be answered from memory. False: the
    path is gone, for another took over."""
    try:
        os.utime(path)
    except OSError as error:
        # any other is the file server's trouble: the next one may come through
        return error.errno not in GONE
    return True


def _remove(path: Path) -> None:
    """Delete a claim at once, then what was in it. After that not even a file server knows a place
    for its owner to write to."""
    gone = path.with_name(f".gone-{secrets.token_hex(6)}")
    with suppress(FileNotFoundError):  # somebody else clears it away
        path.rename(gone)
        if gone.is_dir() and not gone.is_symlink():
            # where its owner still wrote into it, the next holder goes on
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()
