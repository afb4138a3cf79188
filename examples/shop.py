"""A flow with an effect that must happen once; docs/flows.md shows its test by `explore`."""

from orchestrator import Happened, flow, llm, run_id, tool

sent_mails: list[str] = []
"""Stands for the world: a mail server that can be asked what it has sent."""


async def was_sent(mail: str) -> Happened | None:
    return Happened(None) if mail in sent_mails else None


@tool(effects="external", reconcile=was_sent)
async def send_mail(mail: str) -> None:
    sent_mails.append(mail)


@flow(deadline="30s")
async def order(item: str) -> str:
    thanks = await llm(f"Thank a customer for ordering {item}, in a sentence.", max_tokens=40)
    await send_mail(f"{run_id()}: {thanks}")
    return thanks
