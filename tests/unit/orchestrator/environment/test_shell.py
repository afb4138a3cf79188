"""The long-lived shell: exit codes, output, and its state in another shell."""

from __future__ import annotations

import pytest

from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.shell import ShellExited
from tests.unit.orchestrator.environment.conftest import Place, ran, said

SETTING = r"""
cd deep
X=1; export Y=$'two\nlines'; LIST=(1 2 "three 3"); declare -A MAP=([key]="a value")
greet() { echo "hello $1 from ${PWD##*/}"; }
umask 027; set -o pipefail; shopt -s extglob; trap 'echo bye' EXIT
unset SECRET
"""
SHOWING = r"""
greet you; echo "$X|$Y|${LIST[2]}|${MAP[key]}|${SECRET-unset}"
umask; set -o | grep pipefail; shopt extglob; trap -p EXIT; pwd
"""


async def test_commands_have_exit_codes_and_separate_streams(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        code, output = await ran(shell, "echo out; echo err >&2; (exit 7)")
        assert code == 7
        assert dict(output.streams) == {"stdout": b"out\n", "stderr": b"err\n"}
        assert (await ran(shell, "kill -9 $BASHPID & wait $!"))[0] == 128 + 9
        assert (await ran(shell, "not-a-command"))[0] == 127
        assert (await ran(shell, "if then"))[0] != 0
        assert await said(shell, "printf '\\0\\n99\\0'") == "\0\n99\0"


async def test_what_a_command_sets_is_there_for_the_next(place: Place) -> None:
    (place.base / "deep").mkdir()
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, SETTING)
        shown = await said(shell, SHOWING)
        assert shown.startswith("hello you from deep\n1|two\nlines|three 3|a value|unset\n0027\n")


async def test_another_shell_gets_the_state_of_the_first(place: Place) -> None:
    (place.base / "deep").mkdir()
    async with place.tree() as tree, place.shell(tree) as one, place.shell(tree) as other:
        await said(one, SETTING)
        state = await one.state()
        await said(other, state)
        assert await said(other, SHOWING) == await said(one, SHOWING)
        assert await other.state() == state


@pytest.mark.parametrize(
    ("setting", "showing", "shown"),
    [
        ("f() { cat <<'E'\n}\ng () \nE\n}", "f", "}\ng () \n"),
        ("alias two=$'echo 1\\necho 2'", "alias two", "alias two='echo 1\necho 2'\n"),
        ("trap $'echo 1\\necho 2' USR1", "kill -USR1 $$; :", "1\n2\n"),
        ("declare -r FIXED=1", "(FIXED=2) 2>/dev/null; echo $FIXED", "1\n"),
        ("f() { echo f; }; export -f f", "bash -c f", "f\n"),
        ("shopt -s extglob\nf() { case $1 in +(a)) echo all a;; esac; }", "f aa", "all a\n"),
        (
            "shopt -s extglob\nf() { case $1 in +(a)) echo all a;; esac; }\nshopt -u extglob",
            "declare -f f | grep -c all; shopt -q extglob || echo off",
            "1\noff\n",
        ),
        (
            "f() { ll; }; shopt -s expand_aliases; alias ll='echo alias;'",
            "declare -f f | grep -c alias; :",
            "0\n",
        ),
        ("cd() { echo not there; }", "pwd -P | grep -c deep", "1\n"),
        ("set -u; trap D=1 DEBUG", "D=0; trap - DEBUG; echo $D $-", "1 huBc\n"),
        ("function odd-name.1 { echo odd; }", "odd-name.1", "odd\n"),
    ],
    ids=lambda value: value[:20],
)
async def test_another_shell_also_gets(
    place: Place, setting: str, showing: str, shown: str
) -> None:
    (place.base / "deep").mkdir()
    async with place.tree() as tree, place.shell(tree) as one, place.shell(tree) as other:
        await said(one, f"cd deep\n{setting}")
        state = await one.state()
        await ran(other, state)
        assert await other.state() == state
        assert await said(other, showing) == shown


async def test_a_command_finds_the_exit_code_of_the_one_before(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        assert await said(shell, "echo $?") == "0\n"
        for setting in ("", "set -u", "set -o pipefail"):
            code, _ = await ran(shell, f"{setting}\n! true")
            assert code == 1
            await shell.state()
            assert await said(shell, "echo $?; echo $?") == "1\n0\n"
        await ran(shell, "(exit 7)")
        assert await said(shell, "echo $?") == "7\n"
        assert "__" not in await shell.state()


async def test_a_shell_whose_folder_is_gone_stays_where_it_is(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as one, place.shell(tree) as other:
        await said(one, "mkdir gone; cd gone; X=1; rmdir ../gone")
        await ran(other, await one.state())
        assert await said(other, "echo $X; pwd") == f"1\n{place.base}\n"


async def test_variables_that_a_shell_was_started_with_are_not_in_its_state(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "X=1")
        state = await shell.state()
        assert "X=" in state
        assert "not to be stored" not in state


async def test_output_above_the_limit_is_counted_and_left_out(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        code, output = await ran(shell, "head -c 300000 /dev/zero; echo >&2", limit_bytes=1000)
        assert code == 0
        assert (len(output.streams["stdout"]), output.cut_bytes) == (1000, 299_000)


async def test_a_command_as_long_as_a_file_is_executed(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        long = "x" * 300_000
        assert await said(shell, f"word={long}; echo ${{#word}}") == "300000\n"


async def test_a_shell_that_exits_says_so(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        with pytest.raises(ShellExited):
            await shell.run("exit 3", Output(100))


async def test_a_command_with_a_zero_byte_is_refused(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        with pytest.raises(ValueError, match="zero byte"):
            await shell.run("echo \0", Output(100))
        assert await said(shell, "echo next") == "next\n"
