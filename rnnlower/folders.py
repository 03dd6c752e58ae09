"""Files that are written whole, and temporary folders, which the next run removes if theirs was killed.

A live run holds a lock on its folder. On systems without file locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_NAME = ("tmp", ".rnnlower")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder that exists as long as the block runs."""
    prefix, suffix = _NAME
    found = Path(tempfile.gettempdir()).glob(f"{prefix}????????{suffix}")
    # An empty folder may belong to a run that is about to lock it.
    remove_leftovers((folder for folder in found if _is_ours(folder) and any(folder.iterdir())), _remove)
    with contextlib.ExitStack() as stack:
        folder = new_folder(suffix, prefix)
        # A process that still runs there may write into the folder while it is being removed.
        stack.callback(_remove, folder)
        stack.enter_context(locked(folder))
        # A run that writes a model there locks its folder, too, and would wait for this one.
        inner = folder / "files"
        inner.mkdir()
        yield inner


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path whose file takes the place of `path` at the end, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=".", dir=path.absolute().parent) as folder:
        part = Path(folder) / path.name
        yield part
        os.replace(part, path)


def new_folder(suffix: str, prefix: str, parent: Path | None = None) -> Path:
    """Make a folder with a new name, which the caller removes."""
    _take_memory_for_products()
    return Path(tempfile.mkdtemp(suffix, prefix, parent))


@functools.cache
def _take_memory_for_products() -> None:
    """Compute a product before there is a folder to leave: OpenBLAS ends the process if it gets no memory."""
    import numpy as np

    ones = np.ones((256, 256), np.float32)
    np.matmul(ones, ones)


def _is_ours(folder: Path) -> bool:
    try:
        mine = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False
    return mine and folder.is_dir() and not folder.is_symlink()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folders: Iterable[Path], remove: Callable[[Path], None]) -> None:
    """Remove those folders that no run holds a lock on."""
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
    """Make other runs wait for this lock, on systems that have locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
