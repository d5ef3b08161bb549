"""The official OpenAI client, as an application would use it."""

import asyncio
import json

import httpx
import openai
import pytest

MESSAGES = [{"role": "user", "content": "Where is the Eiffel tower?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def test_chat(oai):
    answer = oai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.model == "m"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_chat_stream(oai):
    chunks = list(oai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12, stream=True))
    assert len(chunks) >= 12
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = oai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_usage_in_a_stream(oai):
    options = {"include_usage": True}
    stream = oai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=5, stream=True, stream_options=options)
    usage = [chunk.usage for chunk in stream if chunk.usage]
    assert usage[-1].completion_tokens == 5


def test_tools(oai):
    answer = oai.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, tool_choice="required")
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "find"
    assert "city" in json.loads(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_tools_in_a_stream(oai):
    name, arguments = "", ""
    for chunk in oai.chat.completions.create(
        model="m", messages=MESSAGES, tools=TOOLS, tool_choice="required", stream=True
    ):
        for call in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert name == "find"
    assert "city" in json.loads(arguments)


def test_completions(oai):
    assert oai.completions.create(model="m", prompt="once", max_tokens=4).choices[0].text
    text = "".join(
        chunk.choices[0].text for chunk in oai.completions.create(model="m", prompt="once", max_tokens=4, stream=True) if chunk.choices
    )
    assert text


def test_responses(oai):
    first = oai.responses.create(model="m", input="hello", max_output_tokens=6)
    assert first.output_text
    again = oai.responses.create(model="m", input="and", previous_response_id=first.id, max_output_tokens=6)
    assert again.id != first.id
    assert oai.responses.retrieve(first.id).id == first.id
    oai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(first.id)


def test_responses_stream(oai):
    kinds, text = [], ""
    for event in oai.responses.create(model="m", input="hello", max_output_tokens=6, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert text


def test_embeddings(oai):
    answer = oai.embeddings.create(model="m", input=["a", "b"])
    assert len(answer.data) == 2
    assert answer.data[0].embedding


def test_models(oai):
    assert [model.id for model in oai.models.list()] == ["m"]
    assert oai.models.retrieve("m").id == "m"


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(oai, stream):
    with pytest.raises(openai.NotFoundError) as caught:
        oai.chat.completions.create(model="nope", messages=MESSAGES, stream=stream)
    assert caught.value.code == "model_not_found"
    assert "nope" in caught.value.message
    assert caught.value.request_id


def faults(url, **fields):
    assert httpx.post(url + "/__control", json=fields).is_success


@pytest.fixture
def both(mocks):
    """Sets faults on both mocks, and takes them back."""
    yield lambda **fields: [faults(url, **fields) for url in mocks]
    for url in mocks:
        faults(url, clear=True)


@pytest.mark.parametrize(
    "status, kind",
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_an_engines_errors_pass(oai, both, status, kind):
    both(status=status, count=1)
    with pytest.raises(kind) as caught:
        oai.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.status_code == status


def test_a_stream_that_breaks_off_raises(oai, router, both):
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 50, "stream": True}
    whole = httpx.post(router[0] + "/v1/chat/completions", json=body).content
    third = len(b"\n\n".join(whole.split(b"\n\n")[:3])) + 2
    # Between two events, and inside one.
    for cut in (third, third + 40):
        both(cut_after_bytes=cut, count=1)
        with pytest.raises((openai.APIError, json.JSONDecodeError)) as caught:
            list(oai.chat.completions.create(**body))
        if cut == third:
            assert caught.type is openai.APIError
            assert "replica" in str(caught.value), "it says who broke off"
        both(clear=True)


def test_retries_of_the_client_reach_the_other_replica(router, both):
    both(status=503, count=1)
    with openai.OpenAI(base_url=router[0] + "/v1", api_key="key", max_retries=3) as client:
        assert client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=3).choices


def test_many_at_once(router, mocks):
    async def run():
        async with openai.AsyncOpenAI(base_url=router[0] + "/v1", api_key="key", max_retries=0) as client:

            async def one(stream):
                answer = await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=20, stream=stream)
                if stream:
                    return sum([1 async for _ in answer])
                return answer.usage.completion_tokens

            return await asyncio.gather(*(one(n % 2 == 0) for n in range(60)))

    assert all(count >= 20 for count in asyncio.run(run()))
    served = [httpx.get(url + "/__stats").json() for url in mocks]
    assert all(stats["requests"] > 20 for stats in served), "both replicas work"


def test_leaving_a_stream_frees_the_engine(oai, mocks):
    before = sum(httpx.get(url + "/__stats").json()["disconnects"] for url in mocks)
    stream = oai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=100_000, stream=True)
    next(iter(stream))
    stream.close()
    for _ in range(200):
        now = [httpx.get(url + "/__stats").json() for url in mocks]
        if sum(s["disconnects"] for s in now) == before + 1 and not sum(s["inflight"] for s in now):
            return
    pytest.fail(f"the engine is still at work: {now}")
