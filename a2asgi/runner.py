"""The commands `a2 run`, a worker process beside a web app or instead of one, and `a2 sync`, for its schedules."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

from a2asgi.app import A2
from a2asgi.errors import ConfigurationError
from a2asgi.groups import ungrouped
from a2core import A2Error

TARGET = "module:name of an A2, such as app:a2"


def run(arguments: Sequence[str]) -> int:
    """Handle what an app writes down until SIGTERM or SIGINT; with --once, what is due now. 1 where it cannot."""
    parser = argparse.ArgumentParser("a2 run", description="Handle events, jobs and crons, without serving HTTP.")
    parser.add_argument("target", help=TARGET)
    parser.add_argument("--once", action="store_true", help="drain what is due, print the counts, and exit")
    options = parser.parse_args(arguments)
    os.environ["A2_ROLE"] = "worker"
    return _with(options.target, _once if options.once else _work)


def sync(arguments: Sequence[str]) -> int:
    """Create, update and remove the provider's schedules, so that they are those of the app's crons."""
    parser = argparse.ArgumentParser("a2 sync", description="Bring the schedules at QStash in step with the crons.")
    parser.add_argument("target", help=TARGET)
    return _with(parser.parse_args(arguments).target, _sync)


def load(target: str) -> A2:
    """The A2 that `module:name` names. Raises ConfigurationError."""
    module, _, path = target.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigurationError(f"expected {TARGET}, got {target!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise ConfigurationError(f"expected {TARGET}, found no module {module!r} in {Path.cwd()}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{target}: expected {TARGET}, found no {name!r} in {found!r}")
        found = getattr(found, name)
    if not isinstance(found, A2):
        raise ConfigurationError(f"{target}: expected an A2, got {found!r}")
    return found


def _with(target: str, command: Callable[[A2], Awaitable[None]]) -> int:
    try:
        anyio.run(command, load(target))
    except A2Error as error:
        sys.stderr.write(f"a2: {error}\n")
        return 1
    return 0


async def _until_signal() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            return


def _check_role(a2: A2) -> None:
    if a2.role == "web":
        raise ConfigurationError('this A2 is made with role="web", so it handles nothing: leave the role to A2_ROLE')


async def _work(a2: A2) -> None:
    _check_role(a2)
    async with a2:
        sys.stderr.write(f"a2: working on {a2!r}; stop it by SIGTERM or Ctrl-C\n")
        await _until_signal()


async def _once(a2: A2) -> None:
    _check_role(a2)
    with ungrouped():
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await _until_signal()
                raise A2Error("stopped by a signal before all was drained; what was running is given back")

            tasks.start_soon(stop)
            try:
                sys.stdout.write(f"{await a2.tick()}\n")
            finally:
                with anyio.CancelScope(shield=True):
                    await a2.close()
            tasks.cancel_scope.cancel()


async def _sync(a2: A2) -> None:
    try:
        sys.stdout.write(f"{await a2.sync_schedules()}\n")
    finally:
        with anyio.CancelScope(shield=True):
            await a2.close()
