"""The `rnnlower` command. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import atexit
import gc
import signal
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rnnlower.cli.commands.bench import bench
from rnnlower.cli.commands.looking import check, inspect, verify
from rnnlower.cli.commands.quantize import calibrate, quantize
from rnnlower.cli.commands.rewrite import REWRITINGS
from rnnlower.cli.commands.runtimes import engines, probe, targets
from rnnlower.cli.help import Command, epilog, without_types
from rnnlower.cli.running import emit_result
from rnnlower.errors import OptionError

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
