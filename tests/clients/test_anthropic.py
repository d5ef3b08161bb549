"""The official Anthropic client, as an application would use it."""

import anthropic
import httpx
import pytest

MESSAGES = [{"role": "user", "content": "Where is the Eiffel tower?"}]
TOOLS = [
    {
        "name": "find",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


def test_message(claude):
    answer = claude.messages.create(model="m", messages=MESSAGES, max_tokens=12)
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert answer.content[0].text
    assert answer.usage.output_tokens == 12
    assert answer.stop_reason == "max_tokens"


def test_message_stream(claude):
    with claude.messages.stream(model="m", messages=MESSAGES, max_tokens=12) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text
    whole = claude.messages.create(model="m", messages=MESSAGES, max_tokens=12)
    assert text == whole.content[0].text
    assert final.stop_reason == "max_tokens"


def test_tools(claude):
    answer = claude.messages.create(
        model="m", messages=MESSAGES, max_tokens=64, tools=TOOLS, tool_choice={"type": "tool", "name": "find"}
    )
    call = [block for block in answer.content if block.type == "tool_use"][0]
    assert call.name == "find"
    assert "city" in call.input
    assert answer.stop_reason == "tool_use"


def test_tools_in_a_stream(claude):
    with claude.messages.stream(
        model="m", messages=MESSAGES, max_tokens=64, tools=TOOLS, tool_choice={"type": "any"}
    ) as stream:
        final = stream.get_final_message()
    call = [block for block in final.content if block.type == "tool_use"][0]
    assert "city" in call.input


def test_count_tokens(claude):
    assert claude.messages.count_tokens(model="m", messages=MESSAGES).input_tokens > 0


def test_unknown_model(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="nope", messages=MESSAGES, max_tokens=4)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert "nope" in caught.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="nope", messages=MESSAGES)
    with pytest.raises(anthropic.NotFoundError):
        with claude.messages.stream(model="nope", messages=MESSAGES, max_tokens=4):
            pass


def test_a_body_without_sense(claude, router):
    answer = httpx.post(router[0] + "/v1/messages", content=b"{\"model\": 7", headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()


@pytest.fixture
def both(mocks):
    """Sets faults on both mocks, and takes them back."""
    yield lambda **fields: [httpx.post(url + "/__control", json=fields).raise_for_status() for url in mocks]
    for url in mocks:
        httpx.post(url + "/__control", json={"clear": True})


@pytest.mark.parametrize(
    "status, kind",
    [
        (400, anthropic.BadRequestError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
    ],
)
def test_an_engines_errors_pass(claude, both, status, kind):
    both(status=status, count=1)
    with pytest.raises(kind):
        claude.messages.create(model="m", messages=MESSAGES, max_tokens=4)


def test_a_stream_that_breaks_off_raises(claude, router, both):
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 50}
    whole = httpx.post(router[0] + "/v1/messages", json={**body, "stream": True}).content
    fifth = len(b"\n\n".join(whole.split(b"\n\n")[:5])) + 2
    both(cut_after_bytes=fifth, count=1)
    with pytest.raises(anthropic.APIError) as caught:
        with claude.messages.stream(**body) as stream:
            list(stream.text_stream)
    assert "replica" in str(caught.value), "it says who broke off"
