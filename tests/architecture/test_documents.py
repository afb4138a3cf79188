"""The documents list all settings, tags and parameters, and their links are valid."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from orchestrator.settings import ENV_PREFIX, Settings
from serving.errors import InvalidSlo
from serving.policies.calm.calm import calm
from serving.slo import Slo, from_tags
from tests.places import ROOT

DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (`[^|]+`) \|.*\| ([^|]+) \|$", re.MULTILINE)
# Read by serving, or before the settings: not a field of Settings.
_OTHER_VARIABLES = {"ORCHESTRATE_CACHE", "ORCHESTRATE_CONFIG"}


def rows(document: str, section: str) -> dict[str, str]:
    """The tables of a section: each name in the first column -> the text in the last one."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    table = text.partition(f"# {section}\n")[2].partition("\n#")[0]
    return {
        name: value
        for names, value in _ROW.findall(table)
        for name in re.findall(r"`([^`]+)`", names)
    }


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_every_link_within_the_project_points_to_a_file_and_a_heading(document: Path) -> None:
    for link in _LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_tag_of_a_request_is_listed() -> None:
    with pytest.raises(InvalidSlo, match="unknown tag") as refused:
        from_tags({"slo_nothing": 1})
    known = re.findall(r"slo_\w+", str(refused.value).partition("known:")[2])
    assert set(rows("serving.md", "What a request may promise")) == set(known)
    assert len(known) == len(Slo.__dataclass_fields__)


def test_every_setting_is_listed() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert set(rows("serving.md", "Settings")) == known | _OTHER_VARIABLES


def test_every_parameter_of_calm_is_listed_with_its_default() -> None:
    parameters = list(inspect.signature(calm).parameters.values())[1:]
    listed = rows("scheduling.md", "Its parameters")
    assert {name: json.loads(value) for name, value in listed.items()} == {
        parameter.name: parameter.default for parameter in parameters
    }
