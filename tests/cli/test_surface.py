"""The command line is a promise: this test fails when a command or option appears, vanishes or changes its name."""

from pathlib import Path

import click

from shardwise.cli.main import cli

SNAPSHOT = Path(__file__).with_name("surface.txt")


def surface(command, path):
    """One line per command and per parameter, with type, default and whether it repeats."""
    yield path
    for parameter in command.params:
        spelled = "/".join((*parameter.opts, *parameter.secondary_opts))
        kind = parameter.type.name
        if isinstance(parameter.type, click.Choice):
            kind = "|".join(parameter.type.choices)
        notes = ["required"] * parameter.required + ["repeatable"] * bool(getattr(parameter, "multiple", False))
        yield " ".join((f"{path} {spelled} <{kind}>", *notes))
    for name, sub in sorted(getattr(command, "commands", {}).items()):
        yield from surface(sub, f"{path} {name}")


def test_the_surface_is_the_one_promised():
    found = "\n".join(surface(cli, "shardwise")) + "\n"
    assert found == SNAPSHOT.read_text(encoding="utf-8"), (
        "if the change is meant, write it to surface.txt and CHANGELOG.md"
    )


def test_every_command_and_option_explains_itself():
    def check(command):
        assert command.help, command.name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, (command.name, parameter.name)
        for sub in getattr(command, "commands", {}).values():
            check(sub)

    check(cli)
