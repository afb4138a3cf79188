"""Merging states: each path three ways, whole trees as a reference, conflicts as values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.environment.conflicts import Conflict, Hunk
from orchestrator.environment.errors import InvalidResolution, MergeConflict
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.merging import (
    Merged,
    merge_manifests,
    merge_shell,
    merge_sides,
)
from orchestrator.environment.merging.resolving import Resolution, resolve
from orchestrator.environment.merging.text_merge import MAX_TEXT_BYTES
from tests.unit.orchestrator.environment.merging.merging_samples import (
    FOLDER,
    GONE,
    STORE,
    MemoryBase,
    Tree,
    contents,
    histories,
    manifest_of,
    tree_of,
)

FILE = STORE.file(b"1\n2\n3\n")
OURS = STORE.file(b"one\n2\n3\n")
THEIRS = STORE.file(b"1\n2\nthree\n")
OTHER = STORE.file(b"uno\n2\n3\n")
BOTH = STORE.file(b"one\n2\nthree\n")
LINK = Entry("link", 0o777, "elsewhere")


def merged(
    ancestor: Tree,
    ours: Tree,
    theirs: Tree,
    *,
    base: Tree | None = None,
    resolutions: dict[str, Resolution] | None = None,
) -> Merged:
    """Merge whole trees; the base is the ancestor unless another one is given."""
    base = ancestor if base is None else base
    return merge_manifests(
        *(manifest_of(tree, base) for tree in (ancestor, ours, theirs)),
        base=MemoryBase(base, STORE.stored),
        read=STORE.read,
        keep=STORE.keep,
        resolutions=resolutions,
    )


def resolved(
    ancestor: Tree, ours: Tree, theirs: Tree, base: Tree, choice: Resolution
) -> dict[str, Entry]:
    first = merged(ancestor, ours, theirs, base=base)
    resolutions = {conflict.path: choice for conflict in first.conflicts}
    again = merged(ancestor, ours, theirs, base=base, resolutions=resolutions)
    assert again.conflicts == ()
    return dict(again.manifest)


def plainly_merged(ancestor: Tree, ours: Tree, theirs: Tree) -> dict[str, Entry] | None:
    """The merge of whole trees, path by path; None if any path needs more than a choice."""
    found: dict[str, Entry] = {}
    for path in ancestor.keys() | ours.keys() | theirs.keys():
        before, one, other = (tree.get(path) for tree in (ancestor, ours, theirs))
        if one != other and before not in (one, other):
            return None
        taken = other if one == before else one
        if taken is not None:
            found[path] = taken
    for path in found:
        parent = path.rpartition("/")[0]
        if parent and (parent not in found or found[parent].kind != "folder"):
            return None
    return found


@settings(deadline=None)
@given(histories())
def test_a_merge_is_that_of_the_whole_trees(history: tuple[Tree, Tree, Tree, Tree]) -> None:
    base, ancestor, ours, theirs = history
    result = merged(ancestor, ours, theirs, base=base)
    expected = plainly_merged(ancestor, ours, theirs)
    if expected is not None:
        assert result.conflicts == result.merged_paths == ()
        assert contents(result.manifest) == contents(manifest_of(expected, base))


@settings(deadline=None)
@given(histories())
def test_the_result_is_canonical_whatever_takes_the_place_of_conflicts(
    history: tuple[Tree, Tree, Tree, Tree],
) -> None:
    base, ancestor, ours, theirs = history
    for choice in ("ours", "theirs"):
        manifest = resolved(ancestor, ours, theirs, base, choice)
        assert contents(manifest_of(tree_of(manifest, base), base)) == contents(manifest)


@settings(deadline=None)
@given(histories())
def test_the_order_of_the_sides_does_not_matter(history: tuple[Tree, Tree, Tree, Tree]) -> None:
    base, ancestor, ours, theirs = history
    one = merged(ancestor, ours, theirs, base=base)
    other = merged(ancestor, theirs, ours, base=base)
    assert [(each.path, each.kind, each.ours, each.theirs) for each in one.conflicts] == [
        (each.path, each.kind, each.theirs, each.ours) for each in other.conflicts
    ]
    if not one.conflicts:
        assert one.manifest == other.manifest
    assert resolved(ancestor, ours, theirs, base, "ours") == (
        resolved(ancestor, theirs, ours, base, "theirs")
    )


@given(histories())
def test_what_only_one_side_changed_is_taken(history: tuple[Tree, Tree, Tree, Tree]) -> None:
    base, ancestor, ours, _ = history
    expected = contents(manifest_of(ours, base))
    for sides in ((ours, ours), (ours, ancestor), (ancestor, ours)):
        result = merged(ancestor, *sides, base=base)
        assert (contents(result.manifest), result.conflicts) == (expected, ())


@pytest.mark.parametrize(
    ("ancestor", "ours", "theirs", "kind"),
    [
        ({"f": FILE}, {"f": OURS}, {"f": OTHER}, "text"),
        ({"f": STORE.file(b"\0")}, {"f": STORE.file(b"\0a")}, {"f": STORE.file(b"\0b")}, "binary"),
        ({"f": FILE}, {"f": OURS}, {"f": STORE.file(b"\0")}, "binary"),
        ({"f": LINK}, {"f": Entry("link", 0o777, "a")}, {"f": Entry("link", 0o777, "b")}, "binary"),
        ({}, {"f": OURS}, {"f": THEIRS}, "both added"),
        ({"f": LINK}, {"f": OURS}, {"f": THEIRS}, "both added"),
        ({"f": FILE}, {}, {"f": OURS}, "deleted and changed"),
        ({"f": FILE}, {"f": OURS}, {"f": LINK}, "kind"),
        ({"f": FILE}, {"f": FOLDER, "f/x": FILE}, {"f": OURS}, "kind"),
        ({}, {"f": FOLDER}, {"f": OURS}, "kind"),
        ({"f": FILE}, {"f": FILE._replace(mode=0o600)}, {"f": FILE._replace(mode=0o755)}, "mode"),
        ({"f": FOLDER}, {"f": Entry("folder", 0o700)}, {"f": Entry("folder", 0o750)}, "mode"),
    ],
)  # fmt: skip
def test_a_conflict_is_of_the_kind(ancestor: Tree, ours: Tree, theirs: Tree, kind: str) -> None:
    for sides in ((ours, theirs), (theirs, ours)):
        result = merged(ancestor, *sides)
        assert [(conflict.path, conflict.kind) for conflict in result.conflicts] == [("f", kind)]
        (conflict,) = result.conflicts
        assert conflict.ancestor == ancestor.get("f")
        assert (conflict.ours, conflict.theirs) == (sides[0].get("f"), sides[1].get("f"))
        assert contents(result.manifest) == contents(manifest_of(sides[0], ancestor))


def test_two_changes_of_one_text_are_merged_by_lines_and_the_mode_with_them() -> None:
    ours, theirs = OURS._replace(mtime_ns=5), THEIRS._replace(mode=0o755, mtime_ns=3)
    result = merged({"f": FILE}, {"f": ours}, {"f": theirs})
    assert result.manifest == {"f": BOTH._replace(mode=0o755, mtime_ns=5)}
    assert (result.merged_paths, result.conflicts) == (("f",), ())


def test_a_text_conflict_says_which_lines_and_its_contents_can_be_read() -> None:
    (conflict,) = merged({"f": FILE}, {"f": OURS}, {"f": OTHER}).conflicts
    assert conflict.hunks == (Hunk((0, 1), (0, 1), (0, 1)),)
    assert all(
        entry is not None and entry.content in STORE.stored
        for entry in (conflict.ancestor, conflict.ours, conflict.theirs)
    )


def test_a_file_too_large_for_lines_is_not_read() -> None:
    large = [Entry("file", 0o644, name, MAX_TEXT_BYTES + 1) for name in "abc"]
    result = merged(*({"f": each} for each in large))
    assert [conflict.kind for conflict in result.conflicts] == ["binary"]


def test_permissions_that_conflict_keep_the_merged_content() -> None:
    ours, theirs = OURS._replace(mode=0o600), THEIRS._replace(mode=0o755)
    trees = {"f": FILE}, {"f": ours}, {"f": theirs}
    (conflict,) = merged(*trees).conflicts
    assert (conflict.kind, conflict.ours, conflict.theirs) == (
        "mode",
        BOTH._replace(mode=0o600),
        BOTH._replace(mode=0o755),
    )
    assert merged(*trees, resolutions={"f": "theirs"}).manifest == {"f": BOTH._replace(mode=0o755)}


def test_a_file_changed_in_a_deleted_folder_conflicts_and_keeps_only_itself() -> None:
    ancestor = {"d": FOLDER, "d/f": FILE, "d/g": FILE, "d/e": FOLDER, "d/e/h": FILE, "x": FILE}
    ours, theirs = {"x": FILE}, ancestor | {"d/f": OURS, "d/e/new": FILE}
    result = merged(ancestor, ours, theirs)
    assert [(each.path, each.kind) for each in result.conflicts] == [
        ("d/e/new", "deleted and changed"),
        ("d/f", "deleted and changed"),
    ]
    assert result.manifest == {"d": GONE}
    one = merged(ancestor, ours, theirs, resolutions={"d/f": "theirs", "d/e/new": "ours"})
    assert one.manifest == {"d/f": OURS, "d/g": GONE, "d/e": GONE}
    other = merged(ancestor, ours, theirs, resolutions={"d/f": "ours", "d/e/new": b"text"})
    assert other.manifest == {
        "d/f": GONE, "d/g": GONE, "d/e/h": GONE, "d/e/new": STORE.file(b"text")
    }  # fmt: skip


@pytest.mark.parametrize("base", [{}, {"d": FOLDER, "d/e": FOLDER, "d/e/h": FILE}])
def test_each_file_of_a_folder_added_in_a_deleted_one_conflicts(base: Tree) -> None:
    """The base may have had it already: then no manifest lists it."""
    ancestor = {"d": FOLDER}
    theirs = ancestor | {"d/e": FOLDER, "d/e/h": FILE, "d/i": FOLDER}
    result = merged(ancestor, {}, theirs, base=base)
    assert [(each.path, each.kind, each.theirs) for each in result.conflicts] == [
        ("d/e/h", "deleted and changed", FILE),
        ("d/i", "deleted and changed", FOLDER),
    ]
    kept = resolved(ancestor, {}, theirs, base, "theirs")
    assert tree_of(kept, base) == theirs


def test_deep_trees_are_merged() -> None:
    deep = "/".join(["d"] * 300)
    folders = {"/".join(["d"] * depth): FOLDER for depth in range(1, 301)}
    ancestor, ours, theirs = (folders | {f"{deep}/f": entry} for entry in (FILE, OURS, THEIRS))
    assert merged(ancestor, ours, theirs).manifest == {f"{deep}/f": BOTH}
    (conflict,) = merged(ancestor, {}, theirs).conflicts
    assert conflict.path == f"{deep}/f"


def test_a_folder_deleted_on_one_side_and_untouched_on_the_other_is_deleted() -> None:
    ancestor = {"d": FOLDER, "d/f": FILE, "x": FILE}
    result = merged(ancestor, {"x": FILE}, ancestor | {"x": OURS})
    assert (result.manifest, result.conflicts) == ({"d": GONE, "x": OURS}, ())


def test_a_folder_put_in_place_of_a_file_by_both_sides_is_merged_inside() -> None:
    base = {"f": FOLDER, "f/a": FILE}
    ours, theirs = {"f": FOLDER, "f/a": FILE}, {"f": FOLDER, "f/b": FILE}
    result = merged({"f": LINK}, ours, theirs, base=base)
    assert (result.manifest, result.conflicts) == ({"f/b": FILE}, ())


async def test_any_number_of_sides_is_merged_from_left_to_right() -> None:
    base = {"f": FILE, "g": FILE}
    sides = [{"f": OURS}, {"f": THEIRS}, {"g": GONE}, {"g": OTHER}]
    arguments = {"base": MemoryBase(base), "read": STORE.read, "keep": STORE.keep}
    three = await merge_sides({}, sides[:3], **arguments)  # type: ignore[arg-type]
    assert three == Merged({"f": BOTH, "g": GONE}, (), ("f",))
    with pytest.raises(MergeConflict) as raised:
        await merge_sides({}, sides, **arguments)  # type: ignore[arg-type]
    assert raised.value.conflicts == (
        Conflict("g", "deleted and changed", None, OTHER, FILE, side=3),
    )
    assert "'g' (deleted on one side" in str(raised.value)
    taken = await merge_sides({}, sides, **arguments, on_conflict="theirs")  # type: ignore[arg-type]
    assert taken.manifest == {"f": BOTH, "g": OTHER}
    assert (await merge_sides({}, [], **arguments)).manifest == {}  # type: ignore[arg-type]


async def test_a_function_resolves_one_conflict_after_another() -> None:
    asked: list[str] = []

    async def later(conflict: Conflict) -> bytes:
        asked.append(conflict.path)
        return b"resolved"

    def at_once(conflict: Conflict) -> Entry:
        asked.append(conflict.path)
        return GONE

    trees = {"f": FILE, "g": FILE}, {"f": OURS, "g": OURS}, {"f": OTHER, "g": OTHER}
    conflicts = merged(*trees).conflicts
    by_bytes = merged(*trees, resolutions=dict(await resolve(conflicts, later)))
    assert by_bytes.manifest == dict.fromkeys("fg", STORE.file(b"resolved"))
    by_entries = merged(*trees, resolutions=dict(await resolve(conflicts, at_once)))
    assert by_entries.manifest == {"f": GONE, "g": GONE}
    assert asked == ["f", "g", "f", "g"]


@pytest.mark.parametrize("answer", [None, "text", 3, Entry("folder", 0o755)])
async def test_an_answer_that_is_no_resolution_is_refused(answer: object) -> None:
    (conflict,) = merged({"f": FILE}, {"f": OURS}, {"f": OTHER}).conflicts
    with pytest.raises(InvalidResolution, match="'f'"):
        await resolve([conflict], lambda _: answer)  # type: ignore[arg-type, return-value]


async def test_a_folder_in_conflict_takes_only_a_side_or_a_mode() -> None:
    deleted = merged({"d": FOLDER}, {}, {"d": Entry("folder", 0o700)}).conflicts
    modes = merged({"d": FOLDER}, {"d": Entry("folder", 0o700)}, {"d": Entry("folder", 0o500)})
    for conflicts in (deleted, modes.conflicts):
        with pytest.raises(InvalidResolution):
            await resolve(conflicts, lambda _: b"text")
    with pytest.raises(InvalidResolution):
        await resolve(modes.conflicts, lambda _: FILE)
    assert await resolve(modes.conflicts, lambda _: FOLDER) == {"d": FOLDER}


def test_an_entry_whose_content_is_not_stored_is_refused() -> None:
    unknown = Entry("file", 0o644, "unknown", 3)
    with pytest.raises(InvalidResolution, match="not stored"):
        merged({"f": FILE}, {"f": OURS}, {"f": OTHER}, resolutions={"f": unknown})


async def test_an_unknown_word_for_conflicts_is_refused() -> None:
    (conflict,) = merged({"f": FILE}, {"f": OURS}, {"f": OTHER}).conflicts
    with pytest.raises(ValueError, match="on_conflict"):
        await resolve([conflict], "mine")  # type: ignore[arg-type]


@given(st.sampled_from("abc"), st.sampled_from("abc"), st.sampled_from("abc"))
def test_the_shell_of_a_merge_is_the_one_that_changed_else_ours(
    ancestor: str, ours: str, theirs: str
) -> None:
    result = merge_shell(ancestor, ours, theirs)
    assert result.script == (theirs if ours == ancestor else ours)
    assert result.is_disputed == (len({ancestor, ours, theirs}) == 3)
