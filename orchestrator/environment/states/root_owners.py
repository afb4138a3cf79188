"""Which stores keep their states under a managed root: several may share one."""

from __future__ import annotations

from pathlib import Path


def add_owner(root: Path, url: str) -> None:
    """Write down that a store keeps its states here, before it has any.

    Args:
        url: of the store, without its password.
    """
    if url and url not in owners_of(root):
        with (root / "stores").open("a", encoding="utf-8") as file:
            file.write(f"{url}\n")


def owners_of(root: Path) -> list[str]:
    """The URLs of those stores."""
    try:
        return (root / "stores").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
