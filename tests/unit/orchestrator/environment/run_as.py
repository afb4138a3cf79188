"""Runs tests of workspaces as another user, or without user namespaces.

    python -m tests.unit.orchestrator.environment.run_as user [pytest arguments...]

- here: as this process is.
- user: as an ordinary user; from root.
- forbidden: a seccomp filter refuses user namespaces, as some containers do.

Without further arguments: the tests of workspaces in this folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.environment.sandbox import linux, seccomp
from tests.places import ROOT

NOBODY = 65534
TESTS = [str(Path(__file__).with_name("test_workspaces.py"))]
CONDITIONS = ("here", "user", "forbidden")


def run_tests(condition: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest under a condition; its output is captured."""
    as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    prefix = as_user if condition == "user" else []
    packages = os.pathsep.join([str(ROOT), str(Path(pytest.__file__).parents[1])])
    python = python_of_all(prefix, packages) if prefix else [sys.executable]
    module = ["-m", "tests.unit.orchestrator.environment.run_as", "--forbidden"]
    program = [*python, *(module if condition == "forbidden" else ["-m", "pytest"])]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        if condition == "user":
            os.chown(home, NOBODY, NOBODY)
        options = ["-p", "no:cacheprovider", f"--basetemp={home}/tests"]
        variables = {"HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [*prefix, *program, *arguments, *options],
            cwd=ROOT,
            env=os.environ | variables | {"PYTHONPATH": packages},
            capture_output=True,
            text=True,
            check=False,
        )


def python_of_all(prefix: Sequence[str], packages: str) -> list[str]:
    """An interpreter that an ordinary user may execute, and which finds our packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    nested = "import subprocess, sys, blake3; subprocess.check_call([sys.executable, '-c', ''])"
    for each in (sys.executable, f"/usr/bin/python{version}"):
        environment = os.environ | {"PYTHONPATH": packages}
        try:
            subprocess.run(
                [*prefix, each, "-c", nested], env=environment, capture_output=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return [each]
    pytest.skip("an ordinary user can execute no Python that has the packages")


def forbid_namespaces() -> None:
    """Refuse user namespaces to this process and all that it starts."""
    linux.prctl("NO_NEW_PRIVS", 38, 1)
    seccomp.install(seccomp.compiled_filter(os.uname().machine, None))


if __name__ == "__main__":
    if sys.argv[1] == "--forbidden":
        forbid_namespaces()
        sys.exit(pytest.main(sys.argv[2:]))
    if sys.argv[1] not in CONDITIONS:
        sys.exit(__doc__)
    ended = run_tests(sys.argv[1], sys.argv[2:] or [*TESTS, "-q", "-rs"])
    sys.stdout.write(ended.stdout + ended.stderr)
    sys.exit(ended.returncode)
