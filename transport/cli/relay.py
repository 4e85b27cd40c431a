"""A command that is run in this one's place: it gets the signals, its status is ours. Pure.

When this process is killed, so that it can pass nothing on, the kernel sends the command SIGTERM
(PR_SET_PDEATHSIG): launchers end what they have started then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import FrameType

_PR_SET_PDEATHSIG = 1  # prctl(2)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_TYPED = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends these to all in its foreground


def run(
    command: Sequence[str],
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Until it has ended; its exit status, or 128 and the number of the signal that ended it.

    With `text` on its standard input it has a session of its own, and what is typed reaches it
    through this process alone. Without, it may ask the user, and the terminal signals both.
    """
    alone = text is not None
    early: list[int] = []
    process: subprocess.Popen[str] | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        if number in _TYPED and not alone:
            return
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    with _handled(pass_on):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if alone else None,
            text=True,
            env=environment,
            start_new_session=alone,
            preexec_fn=functools.partial(_end_with, os.getpid(), ctypes.CDLL(None).prctl),
        )
        for number in early:
            process.send_signal(number)
        process.communicate(text)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _end_with(parent: int, prctl: Callable[[int, int], int]) -> None:
    """In the command's process, before it is the command."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was killed before that
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _handled(handler: signal._HANDLER) -> Generator[None, None, None]:
    """What is ignored stays so, here and in the command: nohup(1) ignores SIGHUP."""
    heard = [n for n in (*_ENDING, *_TYPED) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
