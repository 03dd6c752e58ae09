"""PyTorch's exporter, quicker."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _operators_listed_once() -> Iterator[None]:
    """Keep the list of onnxscript's operators, which it makes anew for each export in a second."""
    from torch.onnx._internal.exporter import _registration

    apis = _registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "get_torchlib_ops", functools.cache(apis.get_torchlib_ops))
        yield
