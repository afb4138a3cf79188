from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.tree_of_thoughts.solution import Node
from agents.tree_of_thoughts.tree_pruning import best_thoughts
from agents.tree_of_thoughts.tree_svg import tree_svg


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Trees with a way from the root to the best thought."""
    nodes = [Node("start", 0, None, 1.0, "open", False)]
    for number in range(draw(st.integers(0, 30))):
        parent = draw(st.integers(0, number))
        value = draw(st.none() | st.floats(0, 1))
        nodes.append(Node(f"m{number}", nodes[parent].depth + 1, parent, value, "open", False))
    at: int | None = draw(st.integers(0, len(nodes) - 1))
    while at is not None:
        node = nodes[at]
        nodes[at] = Node(node.move, node.depth, node.parent, node.value, node.status, True)
        at = node.parent
    return nodes


@given(nodes=trees(), most=st.integers(1, 5))
def test_the_way_to_the_answer_stays_and_no_thought_has_too_many_below(
    nodes: list[Node], most: int
) -> None:
    kept = best_thoughts(nodes, max_children=most)
    assert [node.move for node in kept if node.is_best] == [n.move for n in nodes if n.is_best]
    for number, node in enumerate(kept):
        assert sum(each.parent == number for each in kept) <= most
        if node.parent is not None:
            assert node.parent < number
            assert kept[node.parent].depth == node.depth - 1
    assert tree_svg(kept)


@given(nodes=trees())
def test_a_tree_that_is_small_enough_is_unchanged(nodes: list[Node]) -> None:
    assert best_thoughts(nodes, max_children=len(nodes)) == tuple(nodes)
