"""harness completion: prints a script that completes commands, options and files in a shell."""

from __future__ import annotations

import argparse

from trainer.errors import InputError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the shell."""
    parser.epilog = "bash: harness completion bash > ~/.local/share/bash-completion/completions/harness"
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def completion(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the completion script for the requested shell. Raises InputError if the package shtab is missing."""
    try:
        import shtab
    except ImportError as error:
        raise InputError("completion: needs shtab: pip install 'shtab>=1.7'") from error
    print(shtab.complete(arguments.everything(), shell=arguments.shell))
    return 0
