"""`transport doctor`: what is here, what is not, why, and what to do about it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from transport.cli import facts
from transport.cli.doctor_checks import all_findings, refused
from transport.config import TABLE, Settings
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.cli.doctor_live import Trial
    from transport.cli.finding import Finding

_MARKS = {"ok": "  ", "note": "! ", "missing": "- ", "passed": "  ", "unavailable": "- "}


@click.command("doctor", short_help="Report what this machine has, and what is in the way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--no-test", is_flag=True, help="Leave out the live test of each provider.")
def doctor(as_json: bool, no_test: bool) -> None:
    """Report what this machine has for moving tensors, and what is in the way.

    Libraries, RDMA devices and GIDs, limits, namespaces, memory, settings, where the secret comes
    from (never the secret), and a live test of each provider: 1 MiB written and read back between
    two engines. A missing device is no failure; a variable that makes no sense, or a provider that
    is usable and fails its test, makes the exit status 1.
    """
    import json
    import os

    settings, wrong = Settings.survey(os.environ)
    findings = [*refused(wrong), *all_findings(settings)]
    tested = [] if no_test else _trials(settings)
    if as_json:
        click.echo(json.dumps(to_json(settings, findings, tested), indent=1))
    else:
        click.echo(to_text(settings, findings, tested))
    if wrong or any(trial.state == "failed" for trial in tested):
        sys.exit(1)


def _trials(settings: Settings) -> list[Trial]:
    from transport.cli.doctor_live import trials

    return list(trials(settings))


def to_json(
    settings: Settings, findings: Sequence[Finding], tested: Sequence[Trial]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "host": facts.host(),
        "findings": [asdict(finding) for finding in findings],
        "providers": [asdict(trial) for trial in tested],
        "secret": secret_source(settings),
        "settings": [
            {
                "name": row.name,
                "value": settings.shown(row.attribute),
                "default": row.default,
                "help": row.help,
            }
            for row in TABLE
        ],
    }


def to_text(settings: Settings, findings: Sequence[Finding], tested: Sequence[Trial]) -> str:
    """Sections of aligned lines; `!` marks what is worth knowing, `-` what is missing."""
    lines: list[str] = []
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            lines += ["", section]
        lines += _entry(finding.state, finding.name, finding.value, finding.remedy)
    lines += ["", "secret", *_entry("ok", "source", secret_source(settings), "")]
    if tested:
        lines += ["", "providers (live test)"]
        for trial in tested:
            text = f"{trial.state}: {trial.detail}"
            lines += _entry(trial.state, trial.provider, text, trial.remedy)
    lines += ["", "settings: name, value, default (! where they differ), help"]
    width = max(len(row.name) for row in TABLE)
    for row in TABLE:
        value, default = settings.shown(row.attribute) or "(empty)", row.default or "(empty)"
        mark = "! " if value not in (default, "(not set)") else "  "
        lines.append(f"{mark}{row.name:<{width}}  {value:<14} {default:<14} {row.help}")
    return "\n".join(lines).lstrip("\n")


def _entry(state: str, name: str, value: str, remedy: str) -> list[str]:
    line = f"{_MARKS.get(state, 'X ')}{name:<24} {value}"
    return [line, f"{'':26} -> {remedy}"] if remedy else [line]


def secret_source(settings: Settings) -> str:
    """Where the secret would come from, and what is wrong with it; never what it is."""
    from transport.control.secret import read_file, user_file

    if settings.secret is not None:
        return "TRANSPORT_SECRET (an environment can be read by others; a file is better)"
    try:
        file = settings.secret_file or user_file()
        if settings.secret_file is None and not file.exists():
            return f"{file}, made at first use"
        read_file(file)
    except TransportError as error:
        return f"unusable: {error}"
    return str(file)
