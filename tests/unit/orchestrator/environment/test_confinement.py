"""What programs in a sandbox can and cannot do: with namespaces, and without them by Landlock."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.environment.sandbox import landlock, seccomp
from orchestrator.environment.sandbox.messages import Kind
from orchestrator.environment.trees.enforcement import GAPS
from orchestrator.environment.trees.shell import Shell, ShellExited
from orchestrator.environment.trees.tree import Tree
from tests.places import ROOT
from tests.unit.orchestrator.environment.conftest import NO_FILES, Place, ran, said
from tests.unit.orchestrator.environment.run_as import NOBODY, run_tests
from tests.unit.orchestrator.environment.tree_samples import contents, scanned

KINDS: list[Kind] = ["namespaces", "landlock"]
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that a sandbox sees: /tmp it has for itself."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "file").write_text("outside")
        yield folder


@asynccontextmanager
async def shell_in(
    place: Place, kind: Kind, *, network: bool = False, hide: tuple[str, ...] = (), **limits: int
) -> AsyncIterator[tuple[Shell, Tree]]:
    async with (
        place.tree(kind, network=network, hide=hide) as tree,
        place.shell(tree, **limits) as shell,
    ):
        yield shell, tree


WRITES = {
    "an absolute path": "echo x > {outside}/new",
    "a link to a folder": "ln -s {outside} out; echo x > out/new",
    "a link to a file": "ln -s {outside}/file out; echo x > out",
    "a hard link": "ln {outside}/file hard && echo x > hard",
    "a rename": "echo x > new; python3 -c \"import os; os.rename('new', '{outside}/new')\"",
    "a rename from there": "python3 -c \"import os; os.rename('{outside}/file', 'new')\"",
    "truncation": "truncate -s 0 {outside}/file",
    "removal": "rm -f {outside}/file",
    "a new folder": "mkdir {outside}/new",
    "a socket": "python3 -c \"import socket; socket.socket(1).bind('{outside}/new')\"",
    "the root of process 1": "echo x > /proc/1/root{outside}/new",
    "the root of its parent": "echo x > /proc/$PPID/root{outside}/new",
    "its own root": "echo x > /proc/self/root{outside}/new",
    "the way up": "echo x > $(realpath --relative-to=. {outside})/new",
    "the memory of its parent": "python3 -c \"open('/proc/$PPID/mem', 'r+b')\"",
    "kernel settings": "echo x > /proc/sys/kernel/core_pattern",
    "shared memory of the machine": "echo x > /proc/1/root/dev/shm/of-a-sandbox",
}


@both
async def test_nothing_outside_is_written_by_any_way(
    place: Place, outside: Path, kind: Kind
) -> None:
    before = contents(scanned(outside).entries)
    async with shell_in(place, kind) as (shell, _):
        for way, command in WRITES.items():
            code, output = await ran(shell, command.format(outside=outside))
            assert code != 0, (way, output.streams)
            assert contents(scanned(outside).entries) == before, way
    assert not Path("/dev/shm/of-a-sandbox").exists()


@both
async def test_the_base_and_the_managed_folder_are_not_written(place: Place, kind: Kind) -> None:
    (place.base / "file").write_text("base")
    async with shell_in(place, kind) as (shell, tree):
        await said(shell, "echo inside > file; echo more > new; mktemp")
        for folder in {str(place.base), str(place.root.path)} - {tree.place}:
            code, _ = await ran(shell, f"echo x > {folder}/new")
            assert code != 0
    assert contents(scanned(place.base).entries).keys() == {"file"}
    assert (place.base / "file").read_text() == "base"


@both
async def test_hidden_folders_and_other_workspaces_are_not_read(
    place: Place, outside: Path, kind: Kind
) -> None:
    secret = outside / "in" / "secret"
    secret.mkdir(parents=True)
    (secret / "key").write_text("secret")
    (outside / "in" / "beside").write_text("beside")
    (outside / "link").symlink_to(secret)
    async with (
        shell_in(place, kind) as (other, tree),
        shell_in(place, kind, hide=(str(secret),)) as (shell, _),
    ):
        await said(other, "echo theirs > file")
        place.root.blobs.add(b"stored")
        assert await said(shell, f"cat {outside}/in/beside {outside}/file") == "besideoutside"
        ways = [f"{secret}/key", f"{outside}/link/key", f"/proc/self/root{secret}/key"]
        ways += [f"{each}" for each in place.root.path.rglob("*") if each.is_file()]
        ways += [f"{tree.place}/file"] if kind == "landlock" else []
        for way in ways:
            code, output = await ran(shell, f"cat {way}")
            assert code != 0, (way, output.streams)


@both
async def test_a_folder_that_is_hidden_within_the_base_is_not_in_the_workspace(
    place: Place, kind: Kind
) -> None:
    (place.base / "secret").mkdir()
    (place.base / "secret" / "key").write_text("secret")
    hide = (str(place.base / "secret"),)
    async with place.tree(kind, hide=hide) as tree:
        for _ in range(2):
            async with place.shell(tree) as shell:
                code, _ = await ran(shell, "ls; cat secret/key")
                assert code != 0
                assert (await place.seen(tree)).manifest == {}
            await tree.mount(NO_FILES)


@both
async def test_a_program_has_no_capabilities_and_gets_none(place: Place, kind: Kind) -> None:
    async with shell_in(place, kind) as (shell, _):
        status = await said(shell, "cat /proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        kinds = ["Eff", "Prm", "Inh", "Amb"]
        kinds += ["Bnd"] if kind == "namespaces" or os.geteuid() == 0 else []
        assert {fields[f"Cap{each}"] for each in kinds} == {"0" * 16}
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


@both
async def test_a_setuid_program_runs_as_its_caller(place: Place, outside: Path, kind: Kind) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a setuid program of another user")
    program = outside / "id"
    shutil.copy("/usr/bin/id", program)
    outside.chmod(0o755)
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o6755)
    assert subprocess.check_output([program, "-u"]) == b"65534\n"
    async with shell_in(place, kind) as (shell, _):
        assert await said(shell, f"{program} -u") == "0\n"


CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for call in sys.argv[1:]:
    numbers = [int(each) for each in call.split(",")]
    result = libc.syscall(*[ctypes.c_long(each) for each in [*numbers, 0, 0, 0, 0, 0][:6]])
    print(ctypes.get_errno() if result == -1 else 0)
    if result == 0 and numbers[0] == {clone}: os._exit(0)
"""


@both
async def test_calls_for_namespaces_mounts_and_the_kernel_are_refused(
    place: Place, kind: Kind
) -> None:
    machine = os.uname().machine
    column = seccomp._MACHINES.index(machine)
    clone, new_user = seccomp._CLONE[column], 0x10000000
    refused = [str(numbers[column]) for numbers in seccomp._REFUSED.values()]
    refused += [f"{clone},{new_user | 17}"]
    missing = [str(seccomp._CLONE3[column])]
    if machine == "x86_64":
        missing.append(str(0x40000000 + 39))
    (place.base / "calls.py").write_text(CALLS.replace("{clone}", str(clone)))
    async with shell_in(place, kind) as (shell, _):
        given = " ".join([*refused, *missing])
        numbers = [int(each) for each in (await said(shell, f"python3 calls.py {given}")).split()]
        assert numbers == [errno.EPERM] * len(refused) + [errno.ENOSYS] * len(missing)
        for command in ("mount -t tmpfs none /mnt", "unshare -Urm true", "umount /proc"):
            code, _ = await ran(shell, command)
            assert code != 0, command
        works = "import threading, subprocess; t = threading.Thread(target=print); t.start(); "
        works += "t.join(); print(subprocess.check_output(['echo', 'child']))"
        assert "child" in await said(shell, f'python3 -c "{works}"')


TALKS = """
import socket, sys
tcp, udp = (int(each) for each in sys.argv[1:])
for kind, port in ((socket.SOCK_STREAM, tcp), (socket.SOCK_DGRAM, udp)):
    try:
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(5)
            one.connect(("127.0.0.1", port))
            one.send(b"hello")
            print(one.recv(100).decode())
    except OSError as error:
        print("refused")
"""


class Udp(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.received: list[bytes] = []

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        self.received.append(data)
        self.transport.sendto(b"udp", address)


@both
@pytest.mark.parametrize("network", [False, True])
async def test_without_network_no_server_is_reached_by_tcp_or_udp(
    place: Place, kind: Kind, network: bool
) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(5))
        writer.write(b"tcp")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    transport, udp = await loop.create_datagram_endpoint(Udp, ("127.0.0.1", 0))
    ports = [
        each.getsockname()[1] for each in (server.sockets[0], transport.get_extra_info("socket"))
    ]
    (place.base / "talk.py").write_text(TALKS)
    try:
        async with shell_in(place, kind, network=network) as (shell, _):
            heard = await said(shell, f"python3 talk.py {ports[0]} {ports[1]}")
            assert heard.split() == (["tcp", "udp"] if network else ["refused", "refused"])
            code, _ = await ran(shell, "python3 -c 'import socket; socket.socket(40, 1)'")
            assert network or code != 0  # AF_VSOCK leads out of a network namespace
    finally:
        transport.close()
        server.close()
        await server.wait_closed()
    assert (received, udp.received) == (([b"hello"], [b"hello"]) if network else ([], []))


@both
async def test_other_processes_are_neither_signalled_nor_looked_into(
    place: Place, kind: Kind
) -> None:
    with subprocess.Popen(["sleep", "1000"], env={"SECRET": "of-another"}) as other:
        try:
            async with shell_in(place, kind) as (shell, tree):
                if "signals" in tree.sandbox.enforcement.not_enforced:
                    pytest.skip("this kernel's Landlock does not confine signals")
                for number in ("0", "9"):
                    code, _ = await ran(shell, f"kill -{number} {other.pid}")
                    assert code != 0
                for file in ("environ", "mem", "maps", "root/etc/passwd", "fd/0"):
                    code, _ = await ran(shell, f"head -c 1 /proc/{other.pid}/{file}")
                    assert code != 0, file
                with contextlib.suppress(ShellExited):  # it may kill the shell
                    await ran(shell, "kill -9 -1")
            assert other.poll() is None
        finally:
            other.kill()


@both
async def test_limits_hold(place: Place, kind: Kind) -> None:
    limits = {"memory_bytes": 300 << 20, "file_bytes": 1 << 20, "cpu_s": 1}
    async with shell_in(place, kind, **limits) as (shell, _):
        code, output = await ran(shell, "python3 -c 'bytearray(1 << 30)'")
        assert (code, b"MemoryError" in output.streams["stderr"]) == (1, True)
        code, _ = await ran(shell, "head -c 2000000 /dev/zero > big")
        assert code == 128 + 25
        assert await said(shell, "stat -c %s big") == f"{1 << 20}\n"
        code, _ = await ran(shell, "(while :; do :; done)")
        assert code == 128 + 9
        await said(shell, "python3 -c 'bytearray(100 << 20)'")


FORKS = """
import os, time
children = 0
try:
    while children < 50:
        if os.fork() == 0: time.sleep(1000)
        children += 1
except BlockingIOError: pass
print(children)
"""


@both
async def test_the_number_of_processes_is_limited_or_said_not_to_be(
    place: Place, kind: Kind
) -> None:
    (place.base / "forks.py").write_text(FORKS)
    async with shell_in(place, kind, processes=8) as (shell, tree):
        count = int(await said(shell, "python3 forks.py"))
        is_enforced = "processes" not in tree.sandbox.enforcement.not_enforced
        assert count == (6 if is_enforced else 50)  # beside the shell and Python itself


def test_every_gap_has_an_explanation() -> None:
    for version in range(9):
        assert set(landlock.gaps(version)) <= GAPS.keys()
    assert landlock.gaps(0) == ["landlock", "attributes"]
    assert landlock.gaps(1) == ["attributes", "truncate", "devices", "signals", "abstract sockets"]
    assert landlock.gaps(7) == ["attributes"]


def test_a_machine_whose_calls_are_not_known_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="need x86_64 and aarch64; this machine is riscv64"):
        seccomp.compiled_filter("riscv64", None)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("families", [None, (), (1,), (1, 2, 10, 16)])
def test_all_jumps_of_a_filter_lead_to_a_step(
    machine: str, families: tuple[int, ...] | None
) -> None:
    program = list(struct.iter_unpack("HBBI", seccomp.compiled_filter(machine, families)))
    for index, (code, then, otherwise, _) in enumerate(program):
        if code & 7 == 5:
            assert index + 1 + max(then, otherwise) < len(program)
    assert program[-1][0] == 6


WITHOUT_LANDLOCK = """
import asyncio, sys
from pathlib import Path
from orchestrator.environment.sandbox import linux, seccomp
linux.prctl("NO_NEW_PRIVS", 38, 1)
steps = [seccomp._step(0x20, 0), *seccomp._if(0x15, 444, seccomp._ENOSYS)]
seccomp.install(b"".join([*steps, seccomp._step(6, seccomp._ALLOW)]))
from tests.unit.orchestrator.environment.conftest import Place, Zygote, said

async def main(folder):
    zygote = Zygote()
    place = Place(folder, zygote)
    async with place.tree("landlock") as tree, place.shell(tree) as shell:
        print(*tree.sandbox.enforcement.not_enforced)
        print(await said(shell, "echo works > file; cat file"))
    zygote.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_without_landlock_programs_run_and_the_sandbox_says_what_is_missing(
    place: Place,
) -> None:
    command = [sys.executable, "-c", WITHOUT_LANDLOCK, str(place.folder)]
    said_of = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said_of.stdout.split() == ["landlock", "attributes", "processes", "works"], said_of


@pytest.mark.slow
def test_all_of_this_holds_for_an_ordinary_user(subprocesses: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests have shown it")
    names = ("test_confinement", "test_sandbox", "test_trees")
    tests = [f"{Path(__file__).parent}/{name}.py" for name in names]
    run = run_tests("user", [*tests, "-q", "-m", "not slow"])
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-1000:]
