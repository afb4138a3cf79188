"""Errors of tools: each names its cause and what to do about it."""

from pathlib import Path


class ToolError(Exception):
    """Base of the errors of tools."""


class CorpusNotFound(ToolError):
    """The folder of documents does not exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    def __str__(self) -> str:
        return f"the folder {self.args[0]} does not exist: check the path of the corpus"


class CorpusNotAFolder(ToolError):
    """The path of the corpus is not a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    def __str__(self) -> str:
        return f"{self.args[0]} is not a folder: give the folder that contains the documents"


class CorpusEmpty(ToolError):
    """No file in the folder could be indexed.

    Args:
        folder: the corpus.
        suffixes: the suffixes of the files that can be indexed.
        reasons: "file: reason" for each skipped file; empty if there is no file with a suffix.
    """

    def __init__(self, folder: Path, suffixes: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        super().__init__(folder, suffixes, reasons)

    def __str__(self) -> str:
        folder, suffixes, reasons = self.args
        if not reasons:
            return f"{folder} contains no document: add files with {', '.join(suffixes)}"
        shown = "; ".join(reasons[:5])
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        return f"no file in {folder} could be indexed: {shown}{more}"


class CorpusIndexUnavailable(ToolError):
    """The cached index cannot be read or written; the documents are not affected."""

    def __init__(self, index_path: Path, cause: str) -> None:
        super().__init__(index_path, cause)

    def __str__(self) -> str:
        index_path, cause = self.args
        return (
            f"the index {index_path} cannot be used ({cause}): it is only a cache, so delete it, "
            "or set ORCHESTRATE_CACHE to a writable folder with free space"
        )


class Unreadable(ToolError):
    """A file has no text that can be cited; `reason` says why. Reading it again will not help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.args[0])
