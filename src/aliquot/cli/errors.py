"""Exit codes and error lines: every error is one line on stderr, never a traceback."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from aliquot.cli.tables import printable

# As shells report signals. Neither may look like "some Pods do not fit" (1) or bad input (2).
_INTERRUPTED = 130
_NOBODY_READS = 141
# What a group without a command raises from click 8.2 on; before, it prints its help itself. Empty: catches nothing.
_NoArgs: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class InputError(click.ClickException):
    """Invalid input, or a request that cannot be fulfilled."""

    def __init__(self, message: str, *, code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # a class variable in click

    def format_message(self) -> str:
        """One line without control characters."""
        return printable(self.message)

    def show(self, file: object = None) -> None:
        """One line on stderr, without click's usage block."""
        click.echo(f"aliquot: {self.format_message()}", err=True)


class SuggestingGroup(click.Group):
    """Suggests a command with a similar name, or what `hints` says of a word that users of other tools try."""

    hints: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if args[0] in self.hints:
                raise click.UsageError(f'No such command "{args[0]}": {self.hints[args[0]]}', ctx) from error
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if close and not args[0].startswith("-"):
                raise click.UsageError(f'No such command "{args[0]}"; did you mean {close[0]}?', ctx) from error
            raise


def run_and_exit(command: click.Command, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit with its exit code."""
    _make_streams_safe()
    try:
        code = _run(command, name, sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        code = _NOBODY_READS
    except OSError as error:  # for example a full disk
        _print_error(f"output: {error.strerror or error}")
        code = 2
    if code not in (0, 1):  # the rest of the buffer cannot be written: do not try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _make_streams_safe() -> None:
    """Closed streams go nowhere; signs that the terminal's encoding lacks are replaced."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the program ends
        elif isinstance(stream, io.TextIOWrapper) and not (stream.encoding or "").lower().startswith("utf"):
            codecs.register_error("aliquot", _plain)
            stream.reconfigure(errors="aliquot")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Bars of number signs, and question marks for other signs that the encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join("#" if "▁" <= sign <= "▐" else "?" for sign in lost), error.end


def _run(command: click.Command, name: str, arguments: list[str]) -> int:
    """The exit code. Does not call the command itself, which exits with 1 on a broken pipe."""
    try:
        with command.make_context(name, arguments) as context:
            command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except _NoArgs as error:  # a group without a command: its help, as click prints it
        click.echo(error.format_message(), err=True)
        return int(error.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _path(command, name, arguments)
        _print_error(f"{_usage_text(error, path)} (see {path} --help)")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


def _usage_text(error: click.UsageError, path: str) -> str:
    """One line without a full stop: where to read more follows."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from aliquot.cli.optionhints import option_hint

        known = [name for param in error.ctx.command.params for name in param.opts]
        hint = option_hint(path, error.option_name, known)
        if hint is not None:
            return f"No such option '{error.option_name}': {hint}"
    if isinstance(error, click.BadParameter) and (text := _number_text(error)) is not None:
        return text
    return " ".join(error.format_message().split()).removesuffix(".")


_NO_NUMBER = re.compile(r"['\"]?(?P<value>.*?)['\"]? is not (?:in the range |a valid (?:integer|float))", re.DOTALL)


def _number_text(error: click.BadParameter) -> str | None:
    """For a wrong number: click names a range as a formula, and none where the value is no number at all."""
    kind = None if error.param is None else error.param.type
    wrong = _NO_NUMBER.match(error.message)
    if wrong is None or not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return None
    allowed = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None and getattr(kind, "min_open", False):
        allowed += f" above {least:g}"
    elif least is not None:
        allowed += f" from {least:g} to {most:g}" if most is not None else f", at least {least:g}"
    if most is not None and " to " not in allowed:
        allowed += f", at most {most:g}"
    message = f'"{printable(wrong["value"])}" is not allowed: {allowed}'
    return click.BadParameter(message, error.ctx, error.param, error.param_hint).format_message()


def _path(command: click.Command, name: str, arguments: list[str]) -> str:
    """The command that was called. Click's parser does not say of which one an option lacks its value."""
    path = name
    for word in arguments:
        context = click.Context(command)
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, path = found, f"{path} {word}"
    return path


def _print_error(text: str) -> None:
    click.echo(f"aliquot: {text}", err=True)
