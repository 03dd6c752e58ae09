"""Temporary folders that do not outlive their runs: what a killed one left, the next one removes.

A live run holds a lock on its folder; where the system has no locks, everything stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["locked", "remove_leftovers", "temporary_folder"]

_NAME = ("tmp", ".rnnlower")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in the system's temporary one, for as long as the block lasts."""
    prefix, suffix = _NAME
    found = Path(tempfile.gettempdir()).glob(f"{prefix}????????{suffix}")
    # One that is empty may belong to a run that is about to lock it.
    remove_leftovers((folder for folder in found if _is_ours(folder) and any(folder.iterdir())), _remove)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(suffix, prefix))
        # What still runs there when the folder goes may write into it.
        stack.callback(_remove, folder)
        stack.enter_context(locked(folder))
        # Whoever writes a model there locks its folder, too, and would wait for this run.
        inner = folder / "files"
        inner.mkdir()
        yield inner


def _is_ours(folder: Path) -> bool:
    try:
        mine = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False
    return mine and folder.is_dir() and not folder.is_symlink()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folders: Iterable[Path], remove: Callable[[Path], None]) -> None:
    """Removes those of the folders that no run holds a lock on."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        for folder in folders:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other runs that want this lock waiting, where the system can."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
