"""Shape inference that comes back.

At a Slice or a GatherND of a value whose size is below 0 the shape inference of onnx ends the process. Sizes
fall below 0 where a pooling, a Split or the like takes more than there is: often because of a size given by
the user.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import warnings
from collections.abc import Callable, Collection
from typing import TypeVar

from rnnlower import wording
from rnnlower.errors import InvalidModelError
from rnnlower.processes import longest_call

__all__ = ["guarded"]

T = TypeVar("T")

_ENDING = {"Slice", "GatherND"}
_SHRINKING = {
    "AveragePool",
    "CenterCropPad",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "OneHot",
    "Pad",
    "QLinearConv",
    "Resize",
    "STFT",
    "Split",
    "Tile",
    "TopK",
    "Upsample",
}


def guarded(ops: Collection[str], infer: Callable[[], T]) -> T:
    """What `infer`, shape inference over a model of these operators, gives.

    Raises:
        InvalidModelError: It would end the process.
    """
    _check_comes_back(ops, infer)
    return infer()


def _check_comes_back(ops: Collection[str], infer: Callable[[], object]) -> None:
    """Tries `infer` in a child where these operators could make it end the process, on systems that can fork.

    Raises:
        InvalidModelError: It does.
    """
    if _ENDING.isdisjoint(ops) or _SHRINKING.isdisjoint(ops) or not hasattr(os, "fork") or _survives(infer):
        return
    raise InvalidModelError(
        "a size in the model falls below 0, where a pooling, Split or the like takes more than there is",
        remedy="look at the sizes that the model declares, or that "
        f"{wording.option('dim')} and {wording.option('input-shape')} give",
    )


def _survives(infer: Callable[[], object]) -> bool:
    with warnings.catch_warnings():
        # The child runs nothing but this, and waits for no other thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            _leave_no_trace()
            infer()
        finally:
            # An error that it raises comes again in the parent.
            os._exit(0)
    return not os.WIFSIGNALED(_status_within(child, longest_call()))


def _status_within(child: int, seconds: float) -> int:
    """How the child ended; it is ended when its time is over, or a signal comes.

    Raises:
        InvalidModelError: Its time was over.
    """
    deadline, pause = time.monotonic() + seconds, 0.001
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return status
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    raise InvalidModelError(
        "shape inference does not come back",
        remedy="give it more time with the environment variable RNNLOWER_ENGINE_SECONDS",
    )


def _leave_no_trace() -> None:
    """Neither words nor a core file of a process that is meant to end."""
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
