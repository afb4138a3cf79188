"""The state of a shell as a script: its folder, variables, functions, options, traps and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence

CAPTURE = (
    "{ declare -p; printf '\\0'; declare -f; printf '\\0'; shopt -p; set +o; umask -p; alias -p;"
    " trap -p; printf '\\0'; printf '%s\\0%s' \"$PWD\" $$; } 2>/dev/null"
)
"""A command that writes what `ShellCapture.parse` reads."""

_ITS_OWN_NAMES = """
    BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND
    BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO
    BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD
    HOSTNAME HOSTTYPE LINENO MACHTYPE OLDPWD OPTERR OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM
    SECONDS SHELLOPTS SHLVL SRANDOM UID _
"""
_ITS_OWN = frozenset(_ITS_OWN_NAMES.split())
"""Variables that bash itself sets."""

_DECLARED = re.compile(r"declare (-[-a-zA-Z]+) (\w+)", re.ASCII)


class ShellCapture:
    """What a shell has at one moment, by kind and name.

    Attributes:
        folder: its working folder.
        lines: commands that set one thing each.
        process: its id.
    """

    def __init__(self, folder: str, lines: frozenset[str], process: int = 0) -> None:
        self.folder = folder
        self.lines = lines
        self.process = process

    @classmethod
    def parse(cls, output: str) -> ShellCapture:
        """What CAPTURE wrote."""
        variables, functions, options, folder, process = output.split("\0")
        lines = {line for line in _statements(variables) if _is_kept(line)}
        lines |= {f"function {body}" for body in _functions(functions)}
        lines |= {line for line in options.splitlines() if line}
        return cls(folder, frozenset(lines), int(process))

    def script_since(self, first: ShellCapture) -> str:
        """The script that gives a new shell this state: only what has changed since its start.

        So the variables that it was started with are not stored: they may hold secrets.
        """
        changed = sorted(self.lines - first.lines, key=_order)
        removed = sorted(_names(first.lines) - _names(self.lines))
        lines = [f"unset -v {name}" for name in removed]
        return "\n".join([*lines, *changed, f"cd -- {quoted(self.folder)}", ""])


def quoted(text: str) -> str:
    """A text as one word of bash."""
    return "'" + text.replace("'", "'\\''") + "'"


def _statements(declared: str) -> list[str]:
    """The statements of `declare -p`; a value with line breaks is written as $'...\\n...'."""
    statements: list[str] = []
    for line in declared.splitlines():
        if _DECLARED.match(line) or not statements:
            statements.append(line)
        else:
            statements[-1] += "\n" + line
    return statements


def _functions(declared: str) -> list[str]:
    """The definitions of `declare -f`, each from its name to a closing brace at a line's start."""
    return [part + "\n}" for part in declared.split("\n}\n") if part.strip()]


def _is_kept(statement: str) -> bool:
    declared = _DECLARED.match(statement)
    return declared is not None and "r" not in declared[1] and declared[2] not in _ITS_OWN


def _names(lines: Sequence[str] | frozenset[str]) -> set[str]:
    return {declared[2] for line in lines if (declared := _DECLARED.match(line))}


def _order(line: str) -> tuple[int, str]:
    """Options last: some, such as nounset, would stop the script."""
    return (0 if line.startswith(("declare", "function")) else 1, line)
