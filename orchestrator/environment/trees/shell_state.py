"""The state of a shell as a script: its folder, variables, functions, options, traps and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BUILTIN = "\\builtin"
"""Neither an alias nor, for what follows, a function of the same name."""

_ZERO = "printf '\\0'"


def _written(commands: Iterable[str]) -> str:
    """A command that writes what these write, between zeros: see `_read`."""
    writing = " ".join(f"{_BUILTIN} {each} >&197;" for each in (_ZERO, *commands, _ZERO))
    return f"{{ {writing} }} 197>&1 >/dev/null 2>&1"


def _read(output: str) -> list[str]:
    """The parts of what such a command has written; around them a DEBUG trap may have written."""
    return output.split("\0")[1:-1]


_VARIABLES, _FUNCTIONS = ("declare -p", _ZERO), ("declare -F", _ZERO)
_OPTIONS = ("shopt -p", "set +o", "umask -p", "alias -p", "trap -p", _ZERO)

CAPTURE = _written([*_VARIABLES, *_FUNCTIONS, *_OPTIONS, "printf '%s\\0%s' \"$PWD\" $$"])
"""A command that writes what `ShellCapture.parse` reads."""

_ITS_OWN_NAMES = """
    BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND
    BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO
    BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD
    HOSTNAME HOSTTYPE LINENO MACHTYPE OLDPWD OPTERR OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM
    SECONDS SHELLOPTS SHLVL SRANDOM UID _ __command __status
"""
_ITS_OWN = frozenset(_ITS_OWN_NAMES.split())
"""Variables that bash itself sets, and those of the loop that reads commands."""

_DECLARED = re.compile(r"declare (-[-a-zA-Z]+) (\w+)", re.ASCII)
_FUNCTION = re.compile(r"declare (-[a-zA-Z]+) (.+)")

_STATEMENT = re.compile(
    r"""(?: \$' (?:[^'\\]|\\.)*+ ' | ' [^']*+ ' | " (?:[^"\\]|\\.)*+ " | \\. | [^'"\\\n] )++""",
    re.VERBOSE | re.DOTALL,
)
"""A command of one line, but that quoted line breaks may be in it."""


class ShellCapture:
    """What a shell has at one moment, by kind and name.

    Attributes:
        folder: its working folder.
        lines: commands that set one thing each; without the definitions of functions.
        functions: their names.
        process: its id.
    """

    def __init__(
        self,
        folder: str,
        lines: frozenset[str],
        functions: tuple[str, ...] = (),
        process: int = 0,
    ) -> None:
        self.folder = folder
        self.lines = lines
        self.functions = functions
        self.process = process

    @classmethod
    def parse(cls, output: str) -> ShellCapture:
        """What CAPTURE wrote."""
        variables, functions, options, folder, process = _read(output)
        lines = {line for line in _STATEMENT.findall(variables) if _is_kept(line)}
        lines.update(_STATEMENT.findall(options))
        declared = _FUNCTION.findall(functions)
        lines |= {f"declare {flags} {quoted(name)}" for flags, name in declared if flags != "-f"}
        names = tuple(name for _, name in declared)
        return cls(folder, frozenset(lines), names, int(process))

    @property
    def definitions_command(self) -> str:
        """A command that writes the definitions of all functions; see `with_definitions`."""
        return _written(
            command
            for each in self.functions
            for command in (f"declare -f -- {quoted(each)}", _ZERO)
        )

    def with_definitions(self, output: str) -> ShellCapture:
        """This with the functions that `definitions_command` wrote: any line may be in one."""
        definitions = [each.removesuffix("\n") for each in _read(output)[:-1]]
        lines = {each if each.startswith(_DEFINE) else _DEFINE + each for each in definitions}
        return ShellCapture(self.folder, self.lines | lines, self.functions, self.process)

    def script_since(self, first: ShellCapture) -> str:
        """The script that gives a new shell this state: only what has changed since its start.

        So the variables that it was started with are not stored: they may hold secrets. If the
        folder is not there any more, the shell stays in the one in which it is.
        """
        changed = sorted(self.lines - first.lines, key=_order)
        if self.functions:  # they may need extglob to be read, also if it is off now
            at = sum(_order(line)[0] <= _KINDS.index("declare -f") for line in changed)
            changed.insert(at, next(line for line in self.lines if line in _EXTGLOB))
            changed.insert(0, _EXTGLOB[0])
        changed = [self._as_builtin(line) for line in changed]
        removed = sorted(_names(first.lines) - _names(self.lines))
        lines = [f"unset -v {name}" for name in removed]
        return "\n".join([f"cd -- {quoted(self.folder)}", *lines, *changed, ""])

    def _as_builtin(self, line: str) -> str:
        """A line as it works also behind the definition of a function named as its builtin."""
        return f"builtin {line}" if line.split(maxsplit=1)[0] in self.functions else line


_DEFINE = "function "
_EXTGLOB = ("shopt -s extglob", "shopt -u extglob")
_KINDS = ("shopt", "declare", "function", "declare -f", "alias", "set", "umask", "trap")
"""Some options, such as extglob, decide how functions are read; aliases would be expanded in them;
other options, such as nounset, would stop the script; traps would be executed by it."""


def quoted(text: str) -> str:
    """A text as one word of bash."""
    return "'" + text.replace("'", "'\\''") + "'"


def moved(script: str, folder: str, to: str) -> str:
    """A script with the paths of a folder, and of all in it, as if it were elsewhere.

    Other paths that only begin or end like its own stay: /x/base2 or /y/x/base beside /x/base.
    """
    own = rf"(?P<own>{re.escape(folder)})(?![{_NAME}])(?P<below>(?:/[{_NAME}/]*)?)"
    paths = re.compile(rf"{own}|/(?!/)[{_NAME}/]*")
    return paths.sub(lambda path: to + path["below"] if path["own"] else path[0], script)


_NAME = r"-\w.+@~"
"""What may go on with the name of a file: characters that usually do."""


def _is_kept(statement: str) -> bool:
    declared = _DECLARED.match(statement)
    return declared is not None and declared[2] not in _ITS_OWN


def _names(lines: Iterable[str]) -> set[str]:
    return {declared[2] for line in lines if (declared := _DECLARED.match(line))}


def _order(line: str) -> tuple[int, bool, str]:
    kind = "declare -f" if line.startswith("declare -f") else line.split(maxsplit=1)[0]
    return _KINDS.index(kind), kind == "trap" and line.endswith("DEBUG"), line
