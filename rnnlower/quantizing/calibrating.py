"""Calibration data for other tools: the inputs of each call of a model, with its states carried."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import onnx_ir as ir

from rnnlower.arguments import check_choice
from rnnlower.engines.child import write_arrays
from rnnlower.errors import OptionError
from rnnlower.files.model_io import to_proto
from rnnlower.files.publishing import check_destination
from rnnlower.folders import whole_file
from rnnlower.passes.command_options import CalibrateOptions
from rnnlower.quantizing.model_preparation import prepare
from rnnlower.quantizing.observing import Ranges, find_ranges, ranges_to_json
from rnnlower.quantizing.recordings import Feeds, Recordings, as_list, open_source

Format = Literal["npz", "rknn", "qnn", "python"]

_READER = '''"""Calibration data for onnxruntime.quantization, from the .npz file next to this one."""

import pathlib

import numpy as np
from onnxruntime.quantization import CalibrationDataReader


class Reader(CalibrationDataReader):
    """Return the inputs of one call after the other."""

    def __init__(self) -> None:
        with np.load(pathlib.Path(__file__).with_name({data!r})) as file:
            arrays = {{name: file[name] for name in file.files}}
        self._calls = iter([
            {{name: arrays[f"{{index}}/{{name}}"] for name in {names}}} for index in range({count})
        ])

    def get_next(self) -> dict | None:
        return next(self._calls, None)
'''


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The calls of a model on recordings.

    Attributes:
        calls: The inputs of each call, by name; the states are those of the call before.
        ranges: The range of each role, if they were asked for.
    """

    calls: Sequence[Feeds]
    sequences: int
    ranges: Ranges | None = None
    notes: Sequence[str] = ()

    def save(self, path: str | os.PathLike[str], format: Format = "npz") -> None:  # noqa: A002
        """Write the calls.

        Args:
            path: A file, or a folder for ``rknn`` and ``qnn``.
            format: ``npz``: an array for each input, whose first axis counts the calls. ``rknn``: a folder
                with dataset.txt and .npy files. ``qnn``: a folder with input_list.txt and raw files.
                ``python``: a CalibrationDataReader of onnxruntime.quantization, with its data next to it.

        Raises:
            OptionError: There is no such format, no folder for the file, or something else in its place;
                the calls differ in shape and are to be one array; or a list of ``qnn`` cannot hold the name
                of an input.
        """
        check_choice("the format is", format, get_args(Format))
        _check_parent(pathlib.Path(path))
        if format in ("npz", "python"):
            check_destination(pathlib.Path(path))
        _WRITERS[format](self, pathlib.Path(path))

    def save_ranges(self, path: str | os.PathLike[str]) -> None:
        """Write the ranges."""
        assert self.ranges is not None
        text = ranges_to_json(self.ranges)
        _check_parent(pathlib.Path(path))
        with whole_file(pathlib.Path(path)) as part:
            part.write_text(text, encoding="utf-8")


def calibrate_model(model: ir.Model, options: CalibrateOptions) -> Calibration:
    """Run the float model over recordings, as `rnnlower.calibrate`; the model is prepared in place."""
    notes = prepare(model, options)
    source = to_proto(model)
    given = Recordings(source, as_list(options.recordings))
    calls: list[Feeds] = []
    with contextlib.closing(open_source(source)) as session:
        for number, sequence in enumerate(given.sequences):
            options.report_progress("running recording", number + 1, len(given.sequences))
            calls += [call.feeds for call in given.calls(session, sequence)]
    options.report_progress("observing")
    found = find_ranges(model, calls) if options.ranges else None
    return Calibration(calls, len(given.sequences), found, [*notes, *given.notes()])


def _write_npz(calibration: Calibration, path: pathlib.Path) -> None:
    names = list(calibration.calls[0])
    for name in names:
        shapes = {call[name].shape for call in calibration.calls}
        if len(shapes) > 1:
            one, other = sorted(shapes)[:2]
            raise OptionError(
                f"the calls read {name!r} in shapes {list(one)} and {list(other)}, which do not stack; "
                "choose the format rknn, qnn or python, or give recordings of one length"
            )
    arrays = {name: np.stack([call[name] for call in calibration.calls]) for name in names}
    with whole_file(path) as part:
        write_arrays(str(part), arrays)


def _write_files(calibration: Calibration, path: pathlib.Path, listed: str, suffix: str, entry: str) -> None:
    """Write a file for each input of each call, and a list with a line for each call."""
    if path.exists():
        raise OptionError(f"{path} exists; give a folder that does not")
    with whole_file(path) as folder:
        folder.mkdir()
        lines = []
        for number, call in enumerate(calibration.calls):
            files = {name: f"{number}_{index}{suffix}" for index, name in enumerate(call)}
            for name, array in call.items():
                if suffix == ".npy":
                    np.save(folder / files[name], array)
                else:
                    (folder / files[name]).write_bytes(array.tobytes())
            lines.append(" ".join(entry.format(name=name, file=file) for name, file in files.items()))
        (folder / listed).write_text("\n".join(lines) + "\n", encoding="utf-8")
        folder.chmod(0o755)


def _write_qnn(calibration: Calibration, path: pathlib.Path) -> None:
    for name in calibration.calls[0]:
        if name.split() != [name]:
            raise OptionError(
                f"the input {name!r} has a space in its name, at which an entry of input_list.txt ends",
                remedy="rename the input, or choose the format npz, rknn or python",
            )
    _write_files(calibration, path, listed="input_list.txt", suffix=".raw", entry="{name}:={file}")


def _write_python(calibration: Calibration, path: pathlib.Path) -> None:
    data = path.with_suffix(".npz")
    if path == data:
        raise OptionError(f"{path} is where the reader's data goes; give the reader a name that ends in .py")
    calls = calibration.calls
    arrays = {f"{number}/{name}": array for number, call in enumerate(calls) for name, array in call.items()}
    text = _READER.format(data=data.name, names=list(calls[0]), count=len(calls))
    with whole_file(data) as part:
        write_arrays(str(part), arrays)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


_WRITERS: Mapping[str, Callable[[Calibration, pathlib.Path], None]] = {
    "npz": _write_npz,
    "rknn": functools.partial(_write_files, listed="dataset.txt", suffix=".npy", entry="{file}"),
    "qnn": _write_qnn,
    "python": _write_python,
}


def _check_parent(path: pathlib.Path) -> None:
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}")
