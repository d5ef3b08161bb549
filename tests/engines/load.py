"""Chats that grow turn by turn, through a router on a real engine: what it said is cached beside what the engine found.

`run()` drives one load and returns a row for every request; `summary()` makes figures of rows. Only the standard
library. Prompts are words drawn from a seed, so that two loads of one seed are the same, and of two seeds share nothing.
"""

import collections
import http.client
import json
import queue
import random
import statistics
import threading
import time

WORDS = "river stone lantern harbour copper quiet meadow signal winter orbit velvet canyon ember thistle".split()


def text(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def streamed(router, body, headers):
    """One streamed chat: status, seconds to the first body byte, usage, what the router said, and the answer's text."""
    connection = http.client.HTTPConnection(router, timeout=120)
    started = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers | {"content-type": "application/json"})
        answer = connection.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != 200:
            return {"status": answer.status, "body": answer.read().decode(errors="replace")[:200]}
        first, usage, parts, done = None, None, [], False
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            first = first or time.monotonic() - started
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                return {"status": 200, "broken": json.dumps(event["error"])[:200]}
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                parts.append(choice["delta"].get("content") or "")
        return {"status": 200, "ttft": first, "usage": usage, "said": said, "text": "".join(parts), "done": done}
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "broken": repr(error)[:200]}
    finally:
        connection.close()


def run(router, model, *, seed, chats=24, turns=5, head=155, turn=97, in_flight=6, max_tokens=8, after=None, extra=None,
        session=False):
    """Rows of a whole load. A word is 2.6 tokens of the models' tokenizer: heads have 400 tokens, turns 250. `after(rows_so_far)` is called after each request."""
    draw = random.Random(seed)
    system = f"{seed}: {text(draw, head)}"
    waiting = queue.Queue()
    for number in range(chats):
        waiting.put((number, 0, [{"role": "system", "content": system}], random.Random(f"{seed} {number}")))
    rows, lock = [], threading.Lock()
    left = [chats * turns]

    def work():
        while True:
            with lock:
                if left[0] <= 0:
                    return
            try:
                number, at, messages, own = waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            messages.append({"role": "user", "content": f"{number}.{at} {text(own, turn)}"})
            body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                    "stream_options": {"include_usage": True}, **(extra or {})}
            headers = {"x-session-id": f"{seed}-{number}"} if session else {}
            began = time.time()
            result = streamed(router, body, headers)
            row = {"chat": number, "turn": at, "began": began, **result}
            with lock:
                rows.append(row)
                left[0] -= 1
                done = len(rows)
            if after:
                after(done)
            if at + 1 < turns:
                messages.append({"role": "assistant", "content": result.get("text", "")})
                waiting.put((number, at + 1, messages, own))

    workers = [threading.Thread(target=work) for _ in range(in_flight)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return rows


def told(row):
    """What is known of a request that failed."""
    return {key: row.get(key) for key in ("chat", "turn", "status", "broken", "body")}


def predicted(row):
    """Tokens that the router said are cached, and those that the engine found; None where one of them did not say."""
    usage = row.get("usage") or {}
    found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    said = row.get("said", {}).get("x-warmroute-matched-tokens")
    return None if found is None or said is None else (int(said), found)


def working_set(rows):
    """Tokens that a load has in all: each chat's last prompt and answer, and the head that all share once. What is shared is
    what the engine found of a chat's first prompt, in whole blocks."""
    last, head = {}, 0
    for row in rows:
        if usage := row.get("usage"):
            last[row["chat"]] = max(last.get(row["chat"], 0), usage["prompt_tokens"] + usage["completion_tokens"])
            if row["turn"] == 0:
                head = max(head, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return sum(last.values()) - head * max(len(last) - 1, 0)


def summary(rows, *, block, warm_up=0):
    """Figures: failures, share of prompt tokens found cached, busiest over mean, TTFT, predictions within `block`s."""
    whole = [row for row in rows if row["status"] == 200 and row.get("done")]
    failed = [row for row in rows if row not in whole]
    pairs = [pair for row in whole if row["turn"] >= warm_up and (pair := predicted(row))]
    prompt = sum(row["usage"]["prompt_tokens"] for row in whole)
    found = sum((row["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for row in whole)
    by_replica, reasons = (
        collections.Counter(filter(None, (row["said"].get(f"x-warmroute-{name}") for row in whole)))
        for name in ("replica", "reason")
    )
    times = sorted(row["ttft"] for row in whole)
    within = lambda blocks: sum(abs(said - got) <= blocks * block for said, got in pairs)
    return {
        "requests": len(rows),
        "failed": len(failed),
        "failures": [told(row) for row in failed[:3]],
        "cached_share": round(found / prompt, 4) if prompt else None,
        "busiest_over_mean": round(max(by_replica.values()) / (sum(by_replica.values()) / 2), 3) if by_replica else None,
        "reasons": reasons,
        "ttft_p50_ms": round(1000 * statistics.median(times)) if times else None,
        "ttft_p99_ms": round(1000 * times[int(0.99 * (len(times) - 1))]) if times else None,
        "predictions": len(pairs),
        "off": [(said, got) for said, got in pairs if abs(said - got) > block][:5],
        "within_1_block": round(within(1) / len(pairs), 4) if pairs else None,
        "within_2_blocks": round(within(2) / len(pairs), 4) if pairs else None,
    }
