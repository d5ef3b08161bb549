"""The loads: chats of a size, whole or streamed, sent by wrk or h2load in a closed loop."""
import json
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from routers import HERE, MODEL, post

# Distinct conversations of one load, sent in turn.
CHATS = 32


@dataclass(frozen=True)
class Load:
    """One load. `chunks` is 0 for a whole answer."""

    name: str
    kib: int
    chunks: int = 0
    connections: int = 16
    http2: bool = False


LOADS = [
    Load("2k", 2),
    Load("32k", 32),
    Load("256k", 256, connections=8),
    Load("stream-64", 2, chunks=64),
    Load("stream-200", 2, chunks=200),
    Load("one", 2, connections=1),
    Load("h2", 2, http2=True),
]


def text(rng, length, words):
    """Prose, of this folder's own words."""
    out, size = [], 0
    while size < length:
        word = rng.choice(words)
        out.append(word)
        size += len(word) + 1
    return " ".join(out)[:length]


def bodies(load):
    """JSON bodies of about the load's size: conversations with nothing but their system prompt in common."""
    rng = random.Random(load.kib)
    words = re.findall(r"[A-Za-z]+", (HERE.parent / "README.md").read_text())
    system = text(rng, 400, words)
    found = []
    for number in range(CHATS):
        rest = load.kib * 1024 - 700
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{number} " + text(rng, rest, words)}]
        body = {"model": MODEL, "messages": messages, "max_tokens": load.chunks or 8}
        if load.chunks:
            body["stream"] = True
        found.append(json.dumps(body).encode())
    return found


def write_requests(load, folder):
    """The file that `chats.lua` reads, and one body for h2load."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: router.example\r\nContent-Type: application/json\r\n"
    head += "Accept: */*\r\nUser-Agent: OpenAI/Python 1.109.1\r\nAuthorization: Bearer sk-0123456789abcdef\r\n"
    with open(folder / f"{load.name}.requests", "wb") as file:
        for body in bodies(load):
            whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            file.write(b"%d\n" % len(whole) + whole)
    (folder / f"{load.name}.body").write_bytes(bodies(load)[0])


def pace(load, replicas):
    """Streams come a token a millisecond, so that each chunk is a read and a write of its own."""
    for port in replicas:
        post(port, "/__control", json.dumps({"inter_token_ms": 1 if load.chunks else 0}))


def wrk(load, port, folder, seconds):
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "-s", str(HERE / "chats.lua")]
    command += [f"http://127.0.0.1:{port}", "--", str(folder / f"{load.name}.requests")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def h2load(load, port, folder, seconds):
    command = ["h2load", "-t1", f"-c{load.connections // 4}", "-m4", "-D", str(seconds)]
    command += ["-d", str(folder / f"{load.name}.body"), "-H", "content-type: application/json"]
    log = folder / "h2load.log"
    log.unlink(missing_ok=True)
    command += [f"--log-file={log}", f"http://127.0.0.1:{port}/v1/chat/completions"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    times, errors = [], 0
    # Nothing is written where the router doesn't speak HTTP/2 without TLS.
    for line in log.read_text().splitlines() if log.exists() else []:
        _, status, took = line.split("\t")[:3]
        times.append(int(took))
        errors += status != "200"
    times.sort()
    at = lambda share: times[min(int(len(times) * share), len(times) - 1)] if times else 0
    traffic = re.search(r"traffic: .*?\((\d+)\) total", out)
    return {
        "requests": len(times),
        "microseconds": seconds * 1_000_000,
        "bytes": int(traffic.group(1)) if traffic else 0,
        "errors": errors,
        "p50": at(0.5),
        "p99": at(0.99),
    }


def run(load, router, folder, seconds):
    """Sends it for so long; what came of it."""
    if load.http2:
        return h2load(load, getattr(router, "h2port", router.port), folder, seconds)
    return wrk(load, router.port, folder, seconds)
