"""What the person at the terminal sees: stages with elapsed time, and errors that say what to do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

QUOTED_OUTPUT = 4000  # characters of a failed command's output that an error repeats


class UserError(Exception):
    """Something to tell the user in one message, without a stack trace."""


class Stages:
    """Prints one line per finished stage: seconds since the start, then the name."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def done(self, name: str) -> None:
        print(f"{time.monotonic() - self._start:7.1f} s  {name}", flush=True)


def run_main(main: Callable[[], int | None]) -> None:
    """Runs an entry point. TERM and INT unwind the stack, so that whoever started something also ends it."""

    def terminate(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: the clean-up must not be cut short
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminate)
    program = Path(sys.argv[0]).name
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"{program}: {error}")
    except BrokenPipeError:
        sys.exit(1)


def command(*argv: object, input: str | None = None, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a command to its end and returns what it printed; a failure is an error that repeats its messages."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=input, text=True, capture_output=True, cwd=cwd, env=env)
    except FileNotFoundError:
        raise UserError(f"{words[0]}: no such program") from None
    if done.returncode:
        messages = (done.stderr or done.stdout).strip()[-QUOTED_OUTPUT:]
        raise UserError(f"{' '.join(words)[:300]}: exit status {done.returncode}\n{messages}")
    return done.stdout


def succeeds(*argv: object) -> bool:
    """Whether a command ends with status 0; its output is dropped."""
    words = [str(word) for word in argv]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def wait_for(what: str, seconds: float, ready: Callable[[], object], interval: float = 0.1) -> None:
    """Asks `ready` until it is true; after `seconds` that is an error."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise UserError(f"timed out after {seconds:g} s: {what}")
        time.sleep(interval)
