"""PyTorch's exporter, quicker."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture(scope="session", autouse=True)
def _operators_listed_once() -> Iterator[None]:
    """Keep what the exporter finds out anew for each export, which is the same for all: half of its time."""
    from torch._export import utils
    from torch.onnx._internal.exporter import _registration

    lists: list[tuple[ModuleType, str]] = [
        (_registration.onnxscript_apis, "get_torchlib_ops"),
        (_registration._schemas, "op_signature_from_function"),
        (utils, "_materialize_cpp_cia_ops"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in lists:
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield
