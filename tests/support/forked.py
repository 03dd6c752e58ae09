"""The caller of `forking`: it hands over its line, streams and signals, and ends as the fork does."""

from __future__ import annotations

import array
import marshal
import os
import signal
import socket
import sys


def main(folder: str, *words: str) -> None:
    """Run the words in a fork, or in a Python of its own if the options or the environment are special."""
    environment = dict(os.environ)
    with open(f"{folder}/early", "rb") as file:
        prefixes, early = marshal.load(file)
    read = {
        name: text for name, text in environment.items() if name.startswith(prefixes) and name != "PYTHONPATH"
    }
    plain = read == early
    if not plain or not words or (words[0].startswith("-") and words[0] not in ("-c", "-m", "-")):
        os.execv(sys.executable, [sys.executable, *words])
    streams = [number for number in range(3) if _is_open(number)]
    umask = os.umask(0o77)
    os.umask(umask)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(f"{folder}/socket")
    request = (words, os.getcwd(), environment, umask, streams)
    server.sendmsg(
        [marshal.dumps(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
    )
    process = int(server.recv(100))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(process, number))
    for number in streams:
        os.close(number)
    status = int(server.recv(100))
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


main(*sys.argv[1:])
