"""The `rnnlower` command: its commands, and their help.

Help has no type for a switch, and an example and the exit codes at the end.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from rnnlower.cli.commands.examining import bench, check, engines, inspect, probe, targets, verify
from rnnlower.cli.commands.quantize import calibrate, quantize
from rnnlower.cli.commands.rewrite import REWRITINGS
from rnnlower.cli.common import emit_result
from rnnlower.cli.flags import LOWERING, MEASURING, OUTPUT, PANELS, TARGET, VERIFICATION
from rnnlower.errors import OptionError

_CODES = {
    0: "done, and verified unless --no-verify",
    1: "the models differ; nothing was written",
    2: "wrong usage",
    3: "the model cannot be read, is invalid, or uses something that is not supported",
    4: "nothing could be compared: no engine runs the source, or none the result",
}
_EXAMPLES = {
    "rnnlower": "rnnlower unroll model.onnx -o unrolled.onnx --dim T=16",
    "unroll": "rnnlower unroll model.onnx -o unrolled.onnx --dim T=16",
    "scan": "rnnlower scan model.onnx -o scanned.onnx",
    "loop": "rnnlower loop model.onnx -o looped.onnx --node 'encoder*'",
    "lower": "rnnlower lower model.onnx -o lowered.onnx --target openvino",
    "lift": "rnnlower lift model.onnx -o lifted.onnx",
    "pad": "rnnlower pad model.onnx -o padded.onnx --max T=512",
    "convert": "rnnlower convert model.onnx -o older.onnx --opset 13",
    "verify": "rnnlower verify model.onnx lowered.onnx",
    "inspect": "rnnlower inspect model.onnx",
    "check": "rnnlower check model.onnx --target tinygrad --dim T=16",
    "stream": "rnnlower stream denoiser.onnx -o step.onnx --chunk 1",
    "calibrate": "rnnlower calibrate step.onnx speech.npz -o calibration.npz --ranges ranges.json",
    "quantize": "rnnlower quantize model.onnx -o quantized.onnx --calibration speech.npz",
    "targets": "rnnlower targets",
    "engines": "rnnlower engines",
    "probe": "rnnlower probe openvino -o openvino.toml",
    "bench": "rnnlower bench model.onnx --dim T=50 --unroll-factor 4",
}
_OWN_PANELS = {
    "verify": {LOWERING: VERIFICATION},
    "check": {LOWERING: TARGET},
    "bench": {VERIFICATION: MEASURING},
}
"""Shared options that are in another panel for some commands."""
_OWN_CODES: dict[str, dict[int, str]] = {
    "verify": {0: "the models are equal", 1: "they differ"},
    "inspect": {0: "done", 1: "", 4: ""},
    "calibrate": {0: "done", 1: "", 4: "the model does not run on a recording"},
    "quantize": {0: "done, and measured unless --no-verify", 1: "below --min-sqnr; nothing was written"},
    "check": {0: "every node fits", 1: "something does not fit", 4: ""},
    "targets": {0: "done", 1: "", 3: "", 4: ""},
    "engines": {0: "done", 1: "", 3: "", 4: ""},
    "probe": {
        0: "done",
        1: "--check: something differs from the target",
        3: "",
        4: "the runtime is not installed",
    },
    "bench": {0: "done", 1: "a form computes something else", 4: "the runtime runs none of the forms"},
}


class Command(TyperCommand):
    """A command whose help lists the panels in a fixed order."""

    def get_params(self, ctx: Any) -> Any:
        parameters = without_types(super().get_params(ctx))
        panels = _OWN_PANELS.get(str(ctx.info_name), {})
        for parameter in parameters:
            if parameter.name == "help":
                parameter.rich_help_panel = OUTPUT
            panel = getattr(parameter, "rich_help_panel", None)
            parameter.rich_help_panel = panels.get(panel or "", panel)
        order = {panel: number for number, panel in enumerate(PANELS)}
        return sorted(parameters, key=lambda parameter: order.get(parameter.rich_help_panel, -1))


def without_types(parameters: Any) -> Any:
    """Return the parameters of a command without the types that help would show for switches."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            # An empty one would be ignored.
            parameter.metavar = " "
    return parameters


def epilog(command: str) -> str:
    """Return the end of a command's help."""
    codes = (_CODES | _OWN_CODES.get(command, {})).items()
    lines = [f"  {code}  {words}" for code, words in codes if words]
    return "\n".join(["Example:", f"  {_EXAMPLES[command]}", "", "Exit codes:", *lines])


_UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""The exception of click, which typer includes under another name."""


class _Commands(TyperGroup):
    """The group of commands: with --json, wrong usage is an object on stdout, too."""

    def get_params(self, ctx: Any) -> Any:
        return without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        json_ = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if json_:
                emit_result({}, OptionError(error.format_message()))
            raise


app = typer.Typer(
    cls=_Commands,
    name="rnnlower",
    help="Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators.",
    epilog=epilog("rnnlower"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the `rnnlower` command."""
    # Names of a model may have letters that the encoding of the output lacks.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    # A terminal that closes sends SIGHUP, which Windows does not have and `nohup` ignores.
    for ending in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _end)
    # Collecting the garbage of a large graph at the end takes longer than many commands.
    atexit.register(gc.freeze)
    app()


def _end(number: int, frame: object) -> NoReturn:
    """End as after an error, which removes half-written files; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    # Code that pauses garbage collection resumes it on exit.
    gc.freeze()
    raise SystemExit(128 + number)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("rnnlower"))
        raise typer.Exit


for _panel, _functions in {
    "Rewrite a model": (*REWRITINGS, quantize),
    "Look at a model": (inspect, check, verify, calibrate, bench),
    "Runtimes": (targets, engines, probe),
}.items():
    for _function in _functions:
        _name = _function.__name__
        app.command(_name, cls=Command, epilog=epilog(_name), rich_help_panel=_panel)(_function)
