"""References to users' code: the objects that they name, and the errors of invalid ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import InvalidReference
from serving.references import absolute, is_reference, load_reference, reference_to


@pytest.fixture(autouse=True)
def unchanged_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("calm", False),
        ("fcfs:batch=96", False),
        ("package.module:name", True),
        ("module:Class.method", True),
        ("examples/a file.py:name", True),
        ("/tmp/x.py:", False),
        ("", False),
        (":", False),
    ],
)
def test_is_reference_distinguishes_references_from_names(text: str, expected: bool) -> None:
    assert is_reference(text) is expected


def test_a_file_is_loaded_once_and_again_after_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("value = object()")
    first = load_reference(f"{file}:value")
    assert load_reference(f"{file}:value") is first
    file.write_text("value = 2  # another length")
    assert load_reference(f"{file}:value") == 2


def test_imports_in_a_file_are_searched_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("VALUE = 3")
    (tmp_path / "mine.py").write_text("from beside_it import VALUE")
    assert load_reference(f"{tmp_path / 'mine.py'}:VALUE") == 3


def test_a_module_is_searched_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_here.py").write_text("class A:\n    value = 4")
    monkeypatch.chdir(tmp_path)
    assert load_reference("a_module_here:A.value") == 4


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [
        (None, "x", "no such file"),
        ("def one(): ...", "two", "no 'two' in it; it defines one"),
        ("", "two", "it defines nothing"),
        ("1 +", "x", "SyntaxError"),
        ("raise SystemExit(3)", "x", "SystemExit: 3"),
        ("import nothing_of_this_name", "x", "ModuleNotFoundError"),
    ],
)
def test_the_error_of_an_invalid_reference_names_the_reason(
    tmp_path: Path, code: str | None, name: str, reason: str
) -> None:
    file = tmp_path / "mine.py"
    if code is not None:
        file.write_text(code)
    with pytest.raises(InvalidReference, match=reason):
        load_reference(f"{file}:{name}")
    assert "_flow_mine" not in sys.modules or code in ("", "def one(): ...")


@pytest.mark.parametrize("shadowing", ["store.py", "agents/__init__.py"])
def test_a_file_that_would_shadow_a_package_of_the_project_is_refused(
    tmp_path: Path, shadowing: str
) -> None:
    (tmp_path / shadowing).parent.mkdir(exist_ok=True)
    (tmp_path / shadowing).write_text("")
    (tmp_path / "mine.py").write_text("x = 1")
    with pytest.raises(InvalidReference, match="rename this file") as refused:
        load_reference(f"{tmp_path / 'mine.py'}:x")
    assert refused.value.args[0] == str(tmp_path / shadowing)
    assert str(tmp_path) not in sys.path


def test_reference_to_is_the_inverse_of_load_reference(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(): ...")
    function = load_reference(f"{file}:mine")
    assert reference_to(function, "mine") == f"{file}:mine"
    assert load_reference(f"{file}:mine") is function
    assert reference_to(load_reference, "load_reference") == "serving.references:load_reference"


def test_files_of_one_name_are_distinguished(tmp_path: Path) -> None:
    references = []
    for folder in ("a", "b"):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(f"def here(): return {folder!r}")
        references.append(f"{file}:here")
    functions = [load_reference(each) for each in references]
    assert [function() for function in functions] == ["a", "b"]
    assert [reference_to(each, "here") for each in functions] == references


def test_a_file_of_the_checkout_that_would_shadow_a_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("serving.references._PROJECT_ROOT", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "store.py").write_text("")
    (tmp_path / "mine" / "flows.py").write_text("value = 1")
    with pytest.raises(InvalidReference, match="'store' is an import name"):
        load_reference(f"{tmp_path / 'mine' / 'flows.py'}:value")


def test_a_relative_file_gets_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("mine.py:x") == f"{tmp_path / 'mine.py'}:x"
    assert absolute("a.module:x") == "a.module:x"
