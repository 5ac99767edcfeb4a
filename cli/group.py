"""The root command's behaviour: errors as one line, global options anywhere, commands loaded on demand."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from algebra.errors import LockstepError
from cli.options import settings
from cli.text import visible

_FLAGS = frozenset({"--debug", "--insecure"})
_VALUED = frozenset({"--log-level", "--log-format", "--ca", "--certificate", "--key", "--server-name"})


def hoist(arguments: Sequence[str]) -> list[str]:
    """The arguments with global options moved to the front, so that they may stand anywhere before `--`."""
    front, rest, words = [], [], list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            rest += [word, *words]
            break
        if word in _FLAGS or word.partition("=")[0] in _VALUED:
            front.append(word)
            if word in _VALUED and words:
                front.append(words.pop(0))
        else:
            rest.append(word)
    return front + rest


def report(error: LockstepError) -> None:
    """Print the error on stderr, each of its problems on one line."""
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"error: {visible(line)}", file=sys.stderr)


class LazyCommand(TyperCommand):
    """A command whose function, or commands, are imported when its options or its code are needed."""

    def __init__(self, name: str, module: str, attribute: str) -> None:
        self._module, self._attribute = module, attribute
        self._loaded: Any = None
        super().__init__(name=name)

    def load(self) -> Any:
        """The real command."""
        if self._loaded is None:
            found = getattr(importlib.import_module(self._module), self._attribute)
            holder = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
            if holder is not found:
                holder.command(self.name)(found)
            self._loaded = typer.main.get_command(holder)
            self._loaded.name = self.name
        return self._loaded

    @property
    def params(self) -> Any:
        return self.load().params

    @params.setter
    def params(self, value: Any) -> None:
        """Set by the base class before anything is loaded; the real command has its own."""

    @property
    def commands(self) -> Any:
        """The commands below this one, if it has any."""
        return getattr(self.load(), "commands", {})


class LockstepGroup(TyperGroup):
    """The `lockstep` command."""

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {"bench": ("lab.bench.command", "app")}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (module, attribute) in self.lazy.items():
            if _exists(module):
                self.commands[name] = LazyCommand(name, module, attribute)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return command.load() if isinstance(command, LazyCommand) else command

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> Any:
        return super().main(hoist(sys.argv[1:] if args is None else args), *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LockstepError as error:
            if settings(ctx).debug:
                raise
            report(error)
            raise typer.Exit(1) from error


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
