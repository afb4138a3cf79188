"""The gateway over HTTP, between a client and replicas that have no model."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from serving.engine.server.api_keys import ApiKey, digest_of
from serving.errors import InvalidEngineConfig
from serving.gateway.gateway import Gateway, GatewaySettings, gateway_router, is_forwarded
from serving.gateway.replica_state import SUSPECT_S
from tests.unit.serving.gateway.fake_replica import TOKENS, FakeReplica, gateway_to, replicas
from tests.unit.serving.gateway.gateway_examples import chat, due, report_json

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (what is awaited has no event)
            await asyncio.sleep(0.01)


async def ask(client: aiohttp.ClientSession, path: str = CHAT, **members: Any) -> tuple[int, Any]:
    async with client.post(path, json=chat(**members)) as answer:
        return answer.status, await answer.json(content_type=None)


async def events_of(answer: aiohttp.ClientResponse) -> list[str]:
    return (await answer.text()).strip().split("\n\n")


def tags_of(replica: FakeReplica) -> dict[str, Any]:
    tags: dict[str, Any] = replica.asked[-1][1]["vllm_xargs"]
    return tags


async def test_requests_are_spread_and_their_answers_come_back() -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        for each in both:
            each.gate.clear()
        asking = [asyncio.create_task(ask(client)) for _ in range(8)]
        await until(lambda: sum(each.num_open for each in both) == 8)
        assert [each.num_open for each in both] == [4, 4]
        for each in both:
            each.gate.set()
        answers = await asyncio.gather(*asking)
        assert [status for status, _ in answers] == [200] * 8
        assert {answer["url"] for _, answer in answers} == {each.url for each in both}


async def test_a_stream_is_passed_on_token_by_token() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        replica.gate.clear()
        async with client.post(CHAT, json=chat(stream=True)) as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readany() == b"data: 0\n\n"
            replica.gate.set()
            expected = [f"data: {number}" for number in range(1, TOKENS)]
            assert await events_of(answer) == [*expected, "data: [DONE]"]


async def test_headers_path_and_body_arrive_unchanged() -> None:
    content = json.dumps(chat(temperature=1.50)).encode() + b"\n"
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        headers = {"Authorization": "Bearer x", "X-Own": "1", "Content-Type": "application/json"}
        async with client.post("/v1/some/path?a=%26", data=content, headers=headers) as answer:
            assert answer.status == 200
        sent, body = replica.asked[0]
        assert body == json.loads(content)
        assert headers.items() <= sent.items()
        assert sent["Host"] == replica.url.removeprefix("http://")
        assert replica.paths == ["/v1/some/path?a=%26"]


async def test_a_large_body_arrives_whole() -> None:
    text = "x" * 3_000_000
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        content = json.dumps(chat(text, vllm_xargs=due(9.0))).encode()
        async with client.post(CHAT, data=io.BytesIO(content)) as answer:
            assert answer.status == 200
        assert replica.asked[0][1]["messages"][0]["content"] == text


async def test_seconds_in_the_gateway_are_subtracted_from_the_promise() -> None:
    async def slowly() -> Any:
        content = json.dumps(chat(vllm_xargs=due(5.0, slo_final_s=9.0))).encode()
        yield content[:20]
        await asyncio.sleep(0.3)
        yield content[20:]

    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        async with client.post(CHAT, data=slowly()) as answer:
            assert answer.status == 200
        tags = tags_of(replica)
        assert 4.0 < tags["slo_deadline_s"] < 4.71
        assert tags["slo_final_s"] - tags["slo_deadline_s"] == pytest.approx(4.0)


async def test_a_dead_replica_s_requests_go_to_the_next_with_what_is_left() -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        for each in both:
            each.gate.clear()
        asking = [asyncio.create_task(ask(client, vllm_xargs=due(9.0))) for _ in range(4)]
        await until(lambda: sum(each.num_open for each in both) == 4)
        await asyncio.sleep(0.2)
        dying, living = both
        await dying.die()
        await until(lambda: living.num_open == 4)
        living.gate.set()
        answers = await asyncio.gather(*asking)
        assert [(status, answer["url"]) for status, answer in answers] == [(200, living.url)] * 4
        left = sorted(asked[1]["vllm_xargs"]["slo_deadline_s"] for asked in living.asked)
        assert max(left[:2]) < 8.8 < min(left[2:])
        assert await ask(client) == (200, answers[0][1])


@pytest.mark.parametrize("status", [502, 503])
async def test_a_replica_that_cannot_serve_is_passed_over(status: int) -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        both[0].status = status
        answers = [await ask(client) for _ in range(4)]
        assert [(each, answer["url"]) for each, answer in answers] == [(200, both[1].url)] * 4
        both[1].status = status
        assert await ask(client) == (status, {"error": {"code": status}})
        asked = [len(each.asked) for each in both]
        await ask(client)
        assert [len(each.asked) for each in both] == [count + 1 for count in asked]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 504])
async def test_other_errors_are_passed_on_and_not_repeated(status: int) -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        for each in both:
            each.status = status
        assert await ask(client) == (status, {"error": {"code": status}})
        assert sum(len(each.asked) for each in both) == 1


async def test_a_broken_stream_of_a_chat_ends_with_an_error_object() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        replica.gate.clear()
        async with client.post(CHAT, json=chat(stream=True)) as answer:
            await answer.content.readany()
            died_s = time.monotonic()
            await replica.die()
            error, done = await events_of(answer)
            assert time.monotonic() - died_s < 1.0
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 502


async def test_a_broken_stream_of_responses_ends_with_an_error_event() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        replica.gate.clear()
        async with client.post(RESPONSES, json=chat(stream=True)) as answer:
            await answer.content.readany()
            await replica.die()
            [event] = await events_of(answer)
        kind, data = event.split("\n")
        assert kind == "event: error"
        document = json.loads(data.removeprefix("data: "))
        assert (document["type"], document["sequence_number"]) == ("error", 1)


async def test_a_client_that_goes_ends_its_request_at_the_replica() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (gateway, client):
        replica.gate.clear()
        answer = await client.post(CHAT, json=chat(stream=True))
        await answer.content.readany()
        waiting = asyncio.create_task(ask(client))
        await until(lambda: replica.num_open == 2)
        answer.close()
        waiting.cancel()
        await until(lambda: replica.num_open == 0, 0.5)
        assert gateway.fleet.replicas[0].num_open == 0


async def test_a_draining_replica_finishes_its_streams_and_gets_no_new_ones() -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        for each in both:
            each.gate.clear()
        streams = [await client.post(CHAT, json=chat(stream=True)) for _ in range(4)]
        drained, other = both
        query = {"replica": drained.url}
        async with client.post("/orchestrate/drain", params=query) as answer:
            expected = {"replica": drained.url, "is_draining": True, "num_open": 2}
            assert await answer.json() == expected
        later = [await client.post(CHAT, json=chat(stream=True)) for _ in range(3)]
        assert (drained.num_open, other.num_open) == (2, 5)
        for each in both:
            each.gate.set()
        for stream in [*streams, *later]:
            assert (await events_of(stream))[-1] == "data: [DONE]"
        async with client.delete("/orchestrate/drain", params=query) as answer:
            assert await answer.json() == expected | {"is_draining": False, "num_open": 0}
        async with client.post("/orchestrate/drain", params={"replica": "http://x"}) as answer:
            assert answer.status == 404


async def test_a_gateway_that_stops_finishes_its_streams_and_refuses_new_requests() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (gateway, client):
        replica.gate.clear()
        stream = await client.post(CHAT, json=chat(stream=True))
        async with client.get("/health"):
            pass
        stopping = asyncio.create_task(gateway.stop())
        await asyncio.sleep(0.1)
        status, _ = await ask_or_refused(client)
        assert status in (503, None)
        replica.gate.set()
        assert (await events_of(stream))[-1] == "data: [DONE]"
        await stopping


async def ask_or_refused(client: aiohttp.ClientSession) -> tuple[int | None, Any]:
    try:
        return await ask(client)
    except aiohttp.ClientConnectionError:
        return None, None


async def test_streams_that_are_left_when_the_gateway_stops_end_with_an_error_event() -> None:
    async with (
        replicas(1) as [replica],
        gateway_to([replica.url], drain_s=0.2) as (gateway, client),
    ):
        replica.gate.clear()
        stream = await client.post(CHAT, json=chat(stream=True))
        await stream.content.readany()
        await gateway.stop()
        error, done = await events_of(stream)
        assert done == "data: [DONE]"
        assert "error" in error


async def test_each_model_has_its_own_replicas() -> None:
    small, large = FakeReplica(models=["small"]), FakeReplica(models=["large"])
    for each in (small, large):
        await each.start()
    async with gateway_to([small.url, large.url]) as (_, client):
        for model, replica in (("small", small), ("large", large)):
            _, answer = await ask(client, model=model)
            assert answer["url"] == replica.url
        status, error = await ask(client, model="huge")
        assert (status, error["error"]["type"]) == (404, "NotFoundError")
        async with client.get("/v1/models") as answer:
            listed = [model["id"] for model in (await answer.json())["data"]]
        assert listed == ["small", "large"]
    await small.close()
    await large.close()


async def test_replicas_without_snapshots_are_routed_by_what_they_were_sent() -> None:
    async with replicas(2) as both:
        for each in both:
            each.report = None
            each.gate.clear()
        async with gateway_to([each.url for each in both]) as (gateway, client):
            asking = [asyncio.create_task(ask(client)) for _ in range(6)]
            await until(lambda: sum(each.num_open for each in both) == 6)
            assert [each.num_open for each in both] == [3, 3]
            assert not gateway.fleet.replicas[0].makes_reports
            for each in both:
                each.gate.set()
            await asyncio.gather(*asking)


async def test_polls_notice_a_death_and_a_restart() -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (gateway, client):
        state = gateway.fleet.replicas[0]
        await both[0].die()
        await until(lambda: state.is_suspect(time.monotonic()), SUSPECT_S)
        async with client.get("/health") as answer:
            assert answer.status == 200
        assert (await ask(client))[1]["url"] == both[1].url
        await both[1].die()
        assert (await ask(client))[0] == 502
        async with client.get("/health") as answer:
            assert answer.status == 503
        await both[0].start(int(both[0].url.rpartition(":")[2]))
        await until(lambda: not state.is_suspect(time.monotonic()))
        assert (await ask(client))[1]["url"] == both[0].url


async def test_replicas_come_and_go_and_their_streams_end_as_usual() -> None:
    async with replicas(2) as both, gateway_to([both[0].url]) as (gateway, client):
        both[0].gate.clear()
        stream = await client.post(CHAT, json=chat(stream=True))
        await gateway.set_replicas([both[1].url])
        assert (await ask(client))[1]["url"] == both[1].url
        both[0].gate.set()
        assert (await events_of(stream))[-1] == "data: [DONE]"
        async with client.get("/metrics") as answer:
            page = await answer.text()
        assert f'open_requests{{replica="{both[1].url}"}} 0.0' in page
        assert f'open_requests{{replica="{both[0].url}"}}' not in page
        await gateway.set_replicas([])
        assert (await ask(client))[0] == 503


LATE = gateway_router("power_of_k", {"k": 0, "late": True})


async def test_late_binding_goes_where_the_turn_comes_first_and_withdraws_the_other_dummies() -> (
    None
):
    async with (
        replicas(3, num_waiting=1) as all_three,
        gateway_to([each.url for each in all_three], router=LATE) as (_, client),
    ):
        _, dead, quick = all_three
        dead.status = 503
        asked = asyncio.create_task(ask(client, vllm_xargs=due(9.0)))
        await until(lambda: all(each.asked for each in all_three))
        await asyncio.sleep(0.05)
        quick.turn.set()
        status, answer = await asked
        assert (status, answer["url"]) == (200, quick.url)
        await until(lambda: not any(each.num_open for each in all_three))
        first, last = (each[1]["vllm_xargs"] for each in quick.asked)
        assert first.pop("slo_dummy") is True
        assert last["slo_deadline_s"] < first["slo_deadline_s"] - 0.05
        assert "slo_dummy" not in last
        async with client.get("/metrics") as page:
            text = await page.text()
        assert f'dummies_total{{outcome="begun",replica="{quick.url}"}} 1.0' in text


async def test_without_a_queue_or_tags_no_dummy_is_sent() -> None:
    async with (
        replicas(2) as both,
        gateway_to([each.url for each in both], router=LATE) as (_, client),
    ):
        await ask(client, vllm_xargs=due(9.0))
        for each in both:
            each.report = report_json(num_waiting=3)
        await asyncio.sleep(0.3)
        await ask(client)
        assert sum(len(each.asked) for each in both) == 2


async def test_a_request_that_every_replica_drops_or_cannot_serve_ends_with_their_answer() -> None:
    async with (
        replicas(2, num_waiting=1) as both,
        gateway_to([each.url for each in both], router=LATE) as (_, client),
    ):
        both[0].status, both[1].status = 503, 504
        assert (await ask(client, vllm_xargs=due(9.0)))[0] == 504
        both[1].status = 503
        assert (await ask(client, vllm_xargs=due(9.0)))[0] == 503


async def test_a_malformed_report_makes_a_replica_suspect_and_is_named() -> None:
    async with replicas(1, speed=[0, 0, 0]) as [replica], gateway_to([replica.url]) as (_, client):
        async with client.get("/orchestrate/replicas") as answer:
            [state] = (await answer.json())["replicas"]
        assert state["is_suspect"]
        assert "speed" in state["failure"]
        assert (await ask(client))[0] == 200  # there is no other


async def test_usage_of_answers_is_learned() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (gateway, client):
        await ask(client, text="x" * 400)
        assert gateway.fleet.estimates.answer_tokens("m") == TOKENS
        assert gateway.fleet.estimates.prompt_tokens("m", 430) == pytest.approx(100, abs=3)


async def test_metrics_count_attempts_retries_and_ages() -> None:
    async with replicas(2) as both, gateway_to([each.url for each in both]) as (_, client):
        both[0].status = 503
        for _ in range(2):
            await ask(client)
        async with client.get("/metrics") as answer:
            page = await answer.text()
        first, second = (f'replica="{each.url}"' for each in both)
        assert f'attempts_total{{outcome="unavailable",{first}}}' in page
        assert f'attempts_total{{outcome="answered",{second}}} 2.0' in page
        assert "orchestrate_gateway_retries_total" in page
        assert f"snapshot_age_seconds{{{first}}} 0." in page


async def test_with_keys_only_probes_are_open_and_keys_are_passed_on() -> None:
    keys = [ApiKey(digest_of(b"good"), "alice", concurrency=1)]
    async with (
        replicas(1) as [replica],
        gateway_to([replica.url], keys=keys, api_key="own") as (gateway, client),
    ):
        replica.key = "own"
        await until(lambda: gateway.fleet.replicas[0].failure == "")
        for path in ("/v1/models", "/metrics", "/orchestrate/replicas"):
            async with client.get(path) as answer:
                assert answer.status == 401
        async with client.get("/health") as answer:
            assert answer.status == 200
        assert (await ask(client))[0] == 401
        assert not replica.asked
        replica.key = "good"
        replica.gate.clear()
        client.headers["Authorization"] = "Bearer good"
        first = asyncio.create_task(ask(client))
        await until(lambda: replica.num_open == 1)
        assert replica.asked[0][0]["Authorization"] == "Bearer good"
        assert (await ask(client))[0] == 429
        replica.gate.set()
        assert (await first)[0] == 200


async def test_a_replica_that_wants_another_key_is_named_with_what_to_do() -> None:
    async with replicas(1) as [replica]:
        replica.key = "secret"
        async with gateway_to([replica.url]) as (gateway, _):
            assert "ORCHESTRATE_API_KEY" in str(gateway.fleet.replicas[0].failure)


async def test_without_keys_only_requests_that_name_this_machine_are_answered() -> None:
    named = {"Host": "evil.example"}
    async with (
        replicas(1) as [replica],
        gateway_to([replica.url]) as (_, client),
        client.get("/health", headers=named) as answer,
    ):
        assert answer.status == 403


async def test_limits_of_a_request() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        async with client.post(CHAT, data=io.BytesIO(b" " * ((64 << 20) + 1))) as answer:
            assert answer.status == 413
        headers = {f"x-{number}": "y" * 7000 for number in range(10)}
        async with client.post(CHAT, json=chat(), headers=headers) as answer:
            assert answer.status == 431
        assert not replica.asked


async def test_what_is_not_json_is_for_a_replica_to_refuse() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        async with client.post("/v1/audio/transcriptions", data=b"\x00\x01") as answer:
            assert answer.status == 200
        assert replica.asked[0][1] == {"content": b"\x00\x01"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True),
        ("/v1/embeddings?x=1", True),
        ("/v1/../metrics", False),
        ("/v1/./x", False),
        ("/metrics", False),
        ("/v1", False),
        ("/v1/load_lora_adapter", False),
    ],
)
def test_only_paths_of_the_api_are_forwarded(path: str, expected: bool) -> None:
    assert is_forwarded(path) is expected


async def test_a_taken_port_is_refused() -> None:
    async with replicas(1) as [replica]:
        port = int(replica.url.rpartition(":")[2])
        gateway = Gateway(GatewaySettings([replica.url], port=port))
        with pytest.raises(InvalidEngineConfig, match="cannot listen"):
            await gateway.start()
        await gateway.stop()


async def test_a_request_that_no_replica_can_meet_is_best_effort_under_slos_serve() -> None:
    busy = {"work_s": 99.0, "due_work_s": [99.0] * 10}
    router = gateway_router("slos_serve", {})
    async with (
        replicas(1, **busy) as [replica],
        gateway_to([replica.url], router=router) as (_, client),
    ):
        await ask(client, max_tokens=9, vllm_xargs=due(4.0, slo_user="u"))
        assert tags_of(replica) == {"slo_user": "u"}
