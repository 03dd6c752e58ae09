"""Publication of a finished model: its destination never holds half of it.

A model with a data file takes two renames. An existing data file is never overwritten, because a
model may be reading it: different data gets a name derived from its content. A reader of the destination,
or a kill between the renames, therefore finds either the old model with its data or the new one with its own.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterator, Sequence

import onnx

from rnnlower.errors import OptionError
from rnnlower.files.checks import external_files, stored_tensors
from rnnlower.folders import locked, new_folder, remove_leftovers

_CHUNK = 2**24
_STAGING = ".rnnlower"


def check_destination(output: pathlib.Path) -> None:
    """Refuse a destination that a file cannot replace.

    Raises:
        OptionError: The destination is a directory, a device or a pipe.
    """
    with contextlib.suppress(OSError):
        # A link to a file is replaced by a file, but what a link to a folder stands for is the folder.
        mode = output.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a device or pipe"
            raise OptionError(f"{output} cannot be written: it is {kind} and not a file")


def check_companion(option: str, path: pathlib.Path, suffixes: Sequence[str], kind: str) -> None:
    """Refuse the path of a page, chart or ranges that cannot be written, before anything is done.

    Raises:
        OptionError: Another suffix, no folder for it, or something in its place that a file cannot replace.
    """
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"{option} {path}: {kind}")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{option} {path}: there is no folder {path.parent}")
    check_destination(path)


@contextlib.contextmanager
def staging_folder(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a hidden folder next to the destination that exists as long as the block runs.

    The leftovers of killed runs are removed first: their folder, and the file next to it with its name and
    ``.onnx``. A live run holds a lock on its folder. On systems without file locks nothing is removed.
    """
    with contextlib.ExitStack() as stack:
        with locked(output.parent):
            remove_leftovers(output.parent.glob(f".*{_STAGING}"), _remove_staged)
            folder = new_folder(_STAGING, ".", output.parent)
            stack.enter_context(locked(folder))
            # Unlocked, it would be a leftover to another run, which would remove it at the same time.
            stack.callback(_remove_staged, folder)
        yield folder


def staging_path_beside(folder: pathlib.Path) -> pathlib.Path:
    """Return the path at which a model is staged that refers to existing data files."""
    return folder.with_name(f"{folder.name}.onnx")


def _remove_staged(folder: pathlib.Path) -> None:
    staging_path_beside(folder).unlink(missing_ok=True)
    shutil.rmtree(folder)


def move_to_destination(model: pathlib.Path, data: pathlib.Path | None, output: pathlib.Path) -> None:
    """Move a model, and the data file it refers to, to their destination."""
    with locked(output.parent):
        if data is not None:
            _keep_mode(output, data)
            _place_data(model, data, output)
        before = _own_data(output)
        _keep_mode(output, model)
        os.replace(model, output)
        for name in before - _own_data(output):
            (output.parent / name).unlink(missing_ok=True)


def _keep_mode(old: pathlib.Path, new: pathlib.Path) -> None:
    """Give the new file the permissions of the old one."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(old, new)


def _place_data(model: pathlib.Path, data: pathlib.Path, output: pathlib.Path) -> None:
    target = output.parent / data.name
    if target.exists() and not data.stat().st_size:
        # Nothing refers to it: all tensors are small, and stay in the model.
        return
    if target.exists() and not filecmp.cmp(data, target, shallow=False):
        target = output.parent / f"{output.name}.{_digest(data)}.data"
        _redirect_data(model, data.name, target.name)
    if not target.exists() or not filecmp.cmp(data, target, shallow=False):
        os.replace(data, target)


def _redirect_data(path: pathlib.Path, old: str, new: str) -> None:
    """Make the model refer to its data file by another name."""
    model = onnx.load(path, load_external_data=False)
    for _, tensor in stored_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == old:
                entry.value = new
    path.write_bytes(model.SerializeToString())


def _own_data(output: pathlib.Path) -> set[str]:
    """Return the data files of the model at the destination that were named after their content here."""
    ours = re.compile(re.escape(output.name) + r"\.[0-9a-f]{16}\.data")
    if not any(ours.fullmatch(name) for name in os.listdir(output.parent)):
        return set()
    try:
        model = onnx.load(output, load_external_data=False)
    except Exception:
        # The broken model is about to be replaced; its data files are unknown, and stay.
        return set()
    return {name for name in external_files(model) if ours.fullmatch(name)}


def _digest(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:16]
