"""Writes the reference pages that say what the code says: `python docs/generate.py`.

tests/unit/cli/test_docs.py fails when a page is older than the code.
"""

from __future__ import annotations

from pathlib import Path

import click

from transport import errors
from transport.cli import commands
from transport.config import TABLE

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py: change the code, then run it. -->\n"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        NOTE,
        "Each is an environment variable, and a field of `transport.Settings` under its name",
        "in small letters without `TRANSPORT_`; `GPU_PLATFORM`, which others read too, has no",
        "prefix. An engine reads the environment when it is made",
        "without `settings=`. An empty variable counts as unset. A value that makes no sense",
        "raises `InvalidUse` with the variable's name. `transport doctor` prints those in force.",
        "",
        "| variable | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for row in TABLE:
        default = f"`{row.default}`" if row.default else "unset"
        lines.append(f"| `{row.name}` | {row.kind} | {default} | {row.help} |")
    return "\n".join([*lines, ""])


def cli_page() -> str:
    lines = [
        "# Command line",
        "",
        NOTE,
        "`transport` and `python -m transport` are the same. The result goes to stdout, progress",
        "and complaints to stderr. Exit status: 0 when all went well; 1 when something could not",
        "be done, or was measured or checked and is wrong; 2 for a command line that makes no",
        "sense; 130 after Ctrl-C.",
        "",
    ]
    for path, command in _leaves(("transport",), commands):
        lines += _command(path, command)
    return "\n".join(lines)


def _leaves(path: tuple[str, ...], command: click.Command):
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _leaves((*path, name), command.commands[name])
    else:
        yield path, command


def _command(path: tuple[str, ...], command: click.Command) -> list[str]:
    text = "\n".join(line.strip() for line in (command.help or "").splitlines())
    options = [param for param in command.params if isinstance(param, click.Option)]
    lines = [f"## {' '.join(path)}", "", text.strip(), ""]
    if options:
        lines += ["| option | meaning |", "| --- | --- |"]
        lines += [_option(option) for option in options]
        lines.append("")
    return lines


def _option(option: click.Option) -> str:
    words = [*option.opts]
    if isinstance(option.type, click.Choice):
        words.append("\\|".join(str(choice) for choice in option.type.choices))
    elif not option.is_flag:
        words.append(option.metavar or "N")
    default = option.default
    text = (option.help or "").strip()
    if not option.is_flag and not option.multiple and isinstance(default, (str, int)):
        text += f" Default: `{default}`."
    return f"| `{' '.join(words)}` | {text} |"


def errors_page() -> str:
    tree = (errors.__doc__ or "").partition("\n\n")[2].rstrip()
    classes = [
        f".. autoexception:: transport.errors.{name}\n   :members:\n   :show-inheritance:"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    lines = [
        "# Errors",
        "",
        NOTE,
        "What goes wrong with memory, peers, settings, layouts and calls is a `TransportError`.",
        "Python's own rules have Python's own errors: a keyword that a function does not have, a",
        "name that an object does not have, a thing that cannot be iterated over. `retryable`",
        "says whether the same call may succeed later with nothing else changed. All of them",
        "pickle with their attributes.",
        "",
        "```text",
        tree,
        "```",
        "",
        "A transfer that fails because of its peer raises `PeerLost`, which is a `PeerError` and a",
        "`TransferError`. `DeadlineExceeded` is a `TimeoutError` too, `InvalidUse` a `ValueError`,",
        "`NativeError` an `OSError`.",
        "",
        "```{eval-rst}",
        *classes,
        "```",
        "",
        "## Native status codes",
        "",
        "What C functions return, and `TransferError.status`:",
        "",
        "| number | name |",
        "| --- | --- |",
        *(f"| {int(status)} | `{status.name}` |" for status in errors.Status),
    ]
    return "\n".join([*lines, ""])


PAGES = {
    "reference/errors.md": errors_page,
    "reference/settings.md": settings_page,
    "reference/cli.md": cli_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
