"""prefix.py ROUTER ADMIN: what the router says an engine holds of each prompt, beside what the engine says it found there.

Four chats with distinct heads, two for each of the two replicas (llama.cpp keeps slots, not blocks: two a replica).
No session header is sent. Prints a table of every request and one line of figures; only the standard library.
"""

import http.client
import json
import random
import sys

MODEL = "tiny-llama"
TURNS = 6
BLOCK = 16
# Under one block, so that the answer, whose tokens the router never sees, can't fill one.
MAX_TOKENS = 8
WORDS = "river stone lantern harbour copper quiet meadow signal winter orbit velvet canyon ember thistle".split()


def text(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def post(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, (answer.status, data)
    return {name.lower(): value for name, value in answer.getheaders()}, json.loads(data)


def metric(admin, name):
    """The sum over a family's series."""
    connection = http.client.HTTPConnection(admin, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def streamed(router, body):
    """What a stream's last event tells in `timings`: llama.cpp puts them there unasked."""
    connection = http.client.HTTPConnection(router, timeout=60)
    body = json.dumps(body | {"stream": True})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    events = [json.loads(line[5:]) for line in connection.getresponse() if line.startswith(b"data: {")]
    assert not any(event.get("usage") for event in events), "nobody asked for usage"
    timings = [event["timings"] for event in events if "timings" in event][-1]
    return timings["cache_n"] + timings["prompt_n"], timings["cache_n"]


def main(router, admin):
    draw = random.Random(4)
    chats = [[{"role": "system", "content": f"chat {number}: {text(draw, 150)}"}] for number in range(4)]
    rows, homes = [], {}
    for turn in range(TURNS):
        for number, messages in enumerate(chats):
            messages.append({"role": "user", "content": f"{turn}: {text(draw, 40)}"})
            body = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS, "seed": 1}
            _, told = post(admin, "/explain", body)
            headers, answer = post(router, "/v1/chat/completions", body)
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            matched = int(headers["x-warmroute-matched-tokens"])
            homes.setdefault(number, set()).add(headers["x-warmroute-replica"])
            decision = (headers["x-warmroute-replica"], headers["x-warmroute-reason"], matched)
            said = tuple(told["decision"][name] for name in ("replica", "reason", "matched_tokens"))
            # With nothing matched, chance takes part in the choice.
            assert said == decision or (turn == 0 and said[1:] == decision[1:]), (told, headers)
            rows.append((number, turn, headers["x-warmroute-replica"], headers["x-warmroute-reason"],
                         usage["prompt_tokens"], told["tokens"], told["basis"], matched, cached))
            messages.append(answer["choices"][0]["message"])
    # What the router read in these answers beside their relay, and in a stream that reports no usage.
    messages = chats[0] + [{"role": "user", "content": "and in a stream?"}]
    prompt, cached = streamed(router, {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS})
    prompt, cached = prompt + sum(row[4] for row in rows), cached + sum(row[8] for row in rows)
    read = [metric(admin, f"warmroute_reported_{name}_tokens_total") for name in ("prompt", "cached")]
    assert read == [prompt, cached], (read, prompt, cached)
    print(f"usage: {read[1]:.0f} of {read[0]:.0f} prompt tokens cached, as llama.cpp's answers say and the router read")
    # As docs/engines.md has it.
    letters = dict(zip(dict.fromkeys(row[2] for row in rows), "ab"))
    print("| chat | turn | replica | reason | prompt tokens, llama.cpp's | ours | matched | `cached_tokens` |")
    print("| --- " * 8 + "|")
    for number, turn, replica, reason, prompt, ours, _, matched, cached in rows:
        print(f"| {number} | {turn} | {letters[replica]} | `{reason}` | {prompt} | {ours} | {matched} | {cached} |")
    later = [row for row in rows if row[1] > 0]
    assert all(row[6] == "tokens" for row in rows), "every prompt was tokenized"
    same = sum(row[4] == row[5] for row in rows)
    # Ours are whole blocks, and lack the answer before; the engine has both.
    within = sum(0 <= row[8] - row[7] < 2 * BLOCK for row in later)
    stayed = sum(len(home) == 1 for home in homes.values())
    assert len(letters) == 2, f"the chats are spread over both replicas: {homes}"
    print(f"prefixes: {same} of {len(rows)} prompts counted as llama.cpp counts them; {within} of {len(later)} matches "
          f"within two blocks of its cached_tokens and never above them; {stayed} of {len(homes)} chats on one replica")
    assert same == len(rows) and within == len(later) and stayed == len(homes)
    # A first turn that repeats nothing is matched by nothing. (The engine may find its own template's first tokens.)
    assert all(row[7] == 0 for row in rows if row[1] == 0)


main(*sys.argv[1:])
