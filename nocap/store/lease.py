"""One holder of a folder, among all processes of all machines that share its file system.

A holder has a claim: a folder `.lease/TOKEN` with a file `holder`, whose modification time is its last heartbeat.

* Claim, then look: a process first makes its own claim and then looks for others, so of two at once at least one sees the other. It stays
  only if none is alive. Both may give way, and try again after a random pause.
* Whether a claim is alive: on the same machine the kernel says so, at once and whatever the process ids, by the lock on the file `holder`.
  It is freed when the process dies, however it dies; a stopped process keeps it. Of a claim from another machine the heartbeats decide. Its
  last one is compared with a file that was made just now: both times are the file system's, and no machine's clock is read.
* Fencing: who takes over deletes the dead claim. A holder prepares each file in a folder inside its claim (`Lease.stage`) and brings it to
  its place by renaming it. A sleeper that wakes has nothing to rename from: its writing fails, whenever it wakes. Lines that are added to a
  file in place are no renames: `check` comes just before them.

What must hold of the file system: making a folder, renaming and listing are atomic and seen by others at once, and times are the server's.
Local disks and NFS 3 and 4 do so, with the usual `async` export too; Lustre, GPFS, BeeGFS and CephFS as their POSIX promise says (not
tried). The kernel's lock is only asked about claims of the same machine, so mounts without `flock`, or where it holds for one machine
(`local_lock=all`, Lustre's `localflock`), do as well. Where there is none at all, heartbeats decide on the same machine too. Object stores
mounted as folders, and folders that a program synchronises, hold none of this: keep one machine to a folder there.
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
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from nocap.config.bounded import read_text
from nocap.store.files import not_elsewhere

NAME, HOLDER = ".lease", "holder"
BEAT_S = 15.0  # between heartbeats: a thousand cells are seventy small requests a second to a file server
LEASE_S = 90.0  # without one, a claim of another machine is dead: more than the minute for which NFS may show old times
GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
_LONGEST_PAUSE_S = 2.0  # between looks at a claim that is waited for
_OWN = set[Path]()  # claims of this process: on NFS a process does not hold up its own locks


class HeldError(ValueError):
    """Another process has the lease; the message names it."""


class LostError(HeldError):
    """Another process took the lease over while this one did not run."""


class _TieError(Exception):
    """Another process claims the folder at this moment."""


class Lease:
    """A folder that this process holds, until `close` or its death."""

    def __init__(self, claim: Path, holder: IO[str]) -> None:
        self._claim, self._holder, self._closed = claim, holder, threading.Event()
        _OWN.add(claim)
        self.lost = False  # at the last heartbeat
        threading.Thread(target=self._beat_on, name="lease", daemon=True).start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def beat(self) -> bool:
        """Say that this process lives. False: another one has taken over."""
        try:
            os.utime(self._claim / HOLDER)
        except OSError as error:  # any other is the file server's trouble: the next heartbeat may come through
            self.lost = self.lost or error.errno in GONE
        return not self.lost

    def stage(self) -> Path:
        """A new folder for what a worker prepares, told to `check`. The worker before can bring nothing more to its place.

        Errors:
            LostError: another process has taken over.
        """
        if not self.beat():
            raise LostError(taken(self._claim))
        for old in self._claim.glob("stage-*"):
            _remove(old)
        made = self._claim / f"stage-{secrets.token_hex(6)}"
        made.mkdir()
        return made

    def close(self) -> None:
        """Give it back."""
        if not self._closed.is_set():
            self._closed.set()
            _OWN.discard(self._claim)
            _withdraw(self._claim, self._holder)

    def _beat_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's, which may wait with them
        while not self._closed.wait(BEAT_S) and not self.lost:
            self.beat()


def check(stage: Path | None) -> None:
    """Refuse to go on where a lease is lost; `None` is what is held without one, as in a measurement.

    Errors:
        LostError: another process has taken over.
    """
    try:
        if stage is not None:
            os.utime(stage)  # asks the file server, where a mere look may be answered from memory
    except OSError as error:
        if error.errno in GONE:
            raise LostError(taken(stage.parent if stage else Path())) from None


def taken(claim: Path) -> str:
    """What is said of a lost lease."""
    return f"another process took {claim.parents[1]} over while this one did not run, and goes on there"


def acquire(folder: Path, *, wait_s: float = 0.0) -> Lease:
    """Become the one holder of a folder, which exists.

    Errors:
        HeldError: another process holds it, and still does after `wait_s`.
        ValueError: something else is in the place of its leases.
    """
    root = folder / NAME
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        raise ValueError(f"{root} must be a folder of leases, or not be there, got something else")
    deadline, pause_s = time.monotonic() + wait_s, 0.05
    while True:
        try:
            _look(root)
            return _claim(root)
        except _TieError:
            time.sleep(random.random() * 0.1)
        except HeldError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)


def abandoned(folder: Path) -> bool:
    """Whether there are claims, of which those who died are to be cleared away by `acquire`."""
    root = folder / NAME
    return root.is_dir() and not root.is_symlink()


def is_held(folder: Path) -> bool:
    """Whether a process has the lease, for people to read: a moment later it may be otherwise."""
    try:
        _look(folder / NAME)
    except HeldError:
        return True
    except (OSError, _TieError):  # another user's folder
        pass
    return False


@cache
def machine() -> str:
    """This machine since its start, whatever the host's name: containers have one each. Of a kernel that names no start: by that name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


# --- claims --------------------------------------------------------------------------------------------------------------------------


def _claim(root: Path) -> Lease:
    """Claim, look, and clear the dead away."""
    token = secrets.token_hex(6)
    new, claim = root / f".new-{token}", root / token
    try:
        root.mkdir(exist_ok=True)
        new.mkdir()
        holder = open(new / HOLDER, "x", encoding="utf-8")  # noqa: SIM115  # open as long as the lease is held
    except FileNotFoundError:  # its holder, who ends now, has cleared the place
        if not root.parent.is_dir():
            raise
        raise _TieError from None
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder.write(f"process {os.getpid()} on {platform.node()} since {since}\n{machine()}\n")
        holder.flush()
        with suppress(OSError):  # a file system without locks: heartbeats decide
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(claim)
        _look(root, mine=claim)
        for other in root.iterdir():
            if other != claim:
                _remove(other)
        os.utime(claim / HOLDER)  # whoever looked while this process slept may have cleared it away
    except (HeldError, FileNotFoundError):
        _withdraw(claim, holder)
        _remove(new)
        raise _TieError from None
    except BaseException:
        _withdraw(claim, holder)
        raise
    return Lease(claim, holder)


def _look(root: Path, mine: Path | None = None) -> None:
    """
    Errors:
        HeldError: there is a claim that is alive, and not `mine`.
    """
    claims = [path for path in (root.iterdir() if root.is_dir() else ()) if path != mine and not path.name.startswith(".")]
    if not claims:
        return
    now = _now(root)
    for claim in claims:
        if name := _alive(claim, now):
            raise HeldError(f"{root.parent} must have one writer, and {name} is training there")


def _alive(claim: Path, now: float) -> str | None:
    """Who holds a claim that is alive."""
    path = claim / HOLDER
    try:
        name, of, *_ = [*read_text(path).splitlines(), "", ""]
        with open(path, "r+", opener=not_elsewhere) as file:  # opening asks the file server for the times of now
            if claim in _OWN:
                return name or "a process"
            if of == machine():
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not take each other for the holder
                    return None
                except BlockingIOError:
                    return name
                except OSError:
                    pass
            return (name or "a process") if now - os.fstat(file.fileno()).st_mtime < LEASE_S else None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # given back now, or nothing that nocap made
        return None


def _now(root: Path) -> float:
    """The file system's own time."""
    path = root / f".now-{secrets.token_hex(6)}"
    try:
        with path.open("xb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        raise _TieError from None
    finally:
        path.unlink(missing_ok=True)


def _withdraw(claim: Path, holder: IO[str]) -> None:
    with suppress(OSError):  # first: NFS keeps a name for an open file
        holder.close()
    with suppress(OSError):
        _remove(claim)
    with suppress(OSError):  # of others there is something in it
        claim.parent.rmdir()


def _remove(path: Path) -> None:
    """Delete a claim at once, then what was in it. After that not even a file server knows a place for its owner to write to."""
    gone = path.parent / f".gone-{secrets.token_hex(6)}"
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    while gone.is_dir() and not gone.is_symlink():
        try:
            shutil.rmtree(gone)
        except FileNotFoundError:
            continue  # somebody else clears it away
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # its owner still wrote into it
                raise
    gone.unlink(missing_ok=True)
