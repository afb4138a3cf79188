"""The addresses at which servers listen, and which clients may use them."""

from __future__ import annotations


def url_of(host: str, port: int) -> str:
    """The address of the API at this host and port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def require_key(host: str, port: int, *, has_keys: bool, insecure: bool, used: str) -> None:
    """Refuse to listen on an address of the network without a key.

    Args:
        used: what any client could use then.
    Raises:
        BadInput: it says what to do.
    """
    from cli.errors import BadInput
    from serving.engine.server.local_host import is_loopback

    if not (is_loopback(host) or has_keys or insecure):
        raise BadInput(
            f"any client that can reach {host}:{port} could use {used}: set "
            "ORCHESTRATE_API_KEY, give --api-keys, a loopback --host, or --insecure"
        )
