"""compare.py ROUTER ADMIN ENGINE ENGINE: real chats through the router must be what the engines say when asked directly.

Ends with one line of figures. Only the standard library: it runs in the engine's own environment.
"""

import http.client
import json
import sys
import time
import uuid

MODEL = "tiny-llama"
# Set by each answer, not by the prompt.
VOLATILE = ("id", "created", "timings")


def post(address, body, headers=None):
    """Returns status, headers, body and the time of the first body byte."""
    connection = http.client.HTTPConnection(address, timeout=60)
    start = time.monotonic()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})}
    )
    answer = connection.getresponse()
    first = answer.read(1)
    took = time.monotonic() - start
    data = first + answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), data, took


def get(address, path):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, (path, answer.status, data)
    return data


def said(data, stream):
    """The text of an answer, and for streams that it ends as it should."""
    if not stream:
        return json.loads(data)["choices"][0]["message"]["content"]
    events = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def stable(data):
    answer = json.loads(data)
    for name in VOLATILE:
        answer.pop(name, None)
    usage = answer.get("usage", {})
    usage.pop("prompt_tokens_details", None)
    return answer


def chat(turn, stream):
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Tell me of number {turn}. " + "Go on and on. " * turn}],
        "temperature": 0,
        "seed": 7,
        "max_tokens": 24,
        "stream": stream,
    }


def main():
    router, admin, *engines = sys.argv[1:]
    served, warm, compared = 0, [], 0
    for turn in range(12):
        for stream in (False, True):
            body = chat(turn, stream)
            session = {"x-session-id": str(uuid.uuid4())}
            status, headers, data, _ = post(router, body, session)
            assert status == 200, (status, data)
            direct = [post(engine, body)[2] for engine in engines]
            text = said(data, stream)
            assert text, data
            assert all(said(other, stream) == text for other in direct), (turn, stream)
            if not stream:
                assert stable(data) == stable(direct[0]), (turn, data, direct[0])
            else:
                assert headers.get("Content-Type", headers.get("content-type")) == "text/event-stream"
            compared += 1
            # The same session again: the engine that has its prefix must be the one that answers.
            status, _, again, took = post(router, chat(turn, False), session)
            assert status == 200
            usage = json.loads(again)["usage"]
            cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            assert cached > 0, (turn, usage)
            warm.append(took)
            served += 2
    unknown = post(router, {**chat(0, False), "model": "nope"})[0]
    assert unknown == 404, unknown
    assert [m["id"] for m in json.loads(get(router, "/v1/models"))["data"]] == [MODEL]
    rows = json.loads(get(admin, "/replicas"))
    rows = rows if isinstance(rows, list) else rows["replicas"]
    assert sum(row["in_flight"] for row in rows) == 0, rows
    each = {}
    for line in get(admin, "/metrics").decode().split("\n"):
        if line.startswith("warmroute_requests_total{"):
            replica = line.split('replica="')[1].split('"')[0]
            each[replica] = each.get(replica, 0) + float(line.rsplit(" ", 1)[1])
    busy = sorted(int(count) for count in each.values() if count)
    assert len(busy) == 2, f"both replicas work: {each}"
    warm.sort()
    print(
        f"llama.cpp: {served} chats through the router ({busy[0]} + {busy[1]} on two replicas), {compared} compared with"
        f" direct answers and equal, every repeat found its prefix, warm answer p50 {warm[len(warm) // 2] * 1000:.0f} ms"
    )


main()
