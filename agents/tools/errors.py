"""What can go wrong with a tool: whose fault it is, and what to do next."""

from pathlib import Path


class ToolError(Exception):
    """A tool of an agent could not do its work."""


class CorpusNotFound(ToolError):
    """The folder of documents does not exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    def __str__(self) -> str:
        return f"there is no folder {self.args[0]}: check the path of the corpus"


class CorpusNotAFolder(ToolError):
    """The corpus must be a folder; this is a file or something else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    def __str__(self) -> str:
        return f"{self.args[0]} is not a folder: name the folder that holds the documents"


class CorpusEmpty(ToolError):
    """Nothing in the folder could be indexed.

    Args:
        folder: the corpus.
        suffixes: the suffixes of the files that can be indexed.
        reasons: "file: reason" of each file that was skipped, none where no file fitted.
    """

    def __init__(self, folder: Path, suffixes: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        super().__init__(folder, suffixes, reasons)

    def __str__(self) -> str:
        folder, suffixes, reasons = self.args
        if not reasons:
            return f"{folder} holds no file that can be read as a document ({', '.join(suffixes)})"
        shown = "; ".join(reasons[:5])
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        return f"no file in {folder} could be indexed: {shown}{more}"


class CorpusIndexUnavailable(ToolError):
    """The cached index cannot be read or written; the documents themselves are untouched."""

    def __init__(self, index_path: Path, cause: str) -> None:
        super().__init__(index_path, cause)

    def __str__(self) -> str:
        index_path, cause = self.args
        return (
            f"the index {index_path} cannot be used ({cause}): it is only a cache, so delete it, "
            "or set ORCHESTRATE_CACHE to a folder with room that you may write to"
        )
