"""sglang.py WARMROUTE SHARED SCRATCH [CASE...]: real SGLang behind Warmroute, on a CPU, with pages of 16 tokens and of 1.

Needs SGLang in SCRATCH/sglang and models in SCRATCH/models (`tests/engines/run sglang` makes both). Its events are found by
asking it (`kv_events: auto`).
"""

import load
from real import ONLY, SCRATCH, Router, free_ports, get, run, say, script, spawn, stop, until

MODEL = "tiny-qwen3"
BLOCK = 16


class Engine:
    def __init__(self, page):
        self.name, self.port = f"page-{page}", free_ports(4)
        self.address, self.events = f"127.0.0.1:{self.port}", self.port + 1
        command = ["bash", script("serve_sglang.sh"), str(self.port), str(self.events), f"models/{MODEL}", MODEL]
        self.process = spawn(f"sglang-{page}", command, PAGE=str(page))

    def healthy(self):
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} ended; see {SCRATCH}/engine-logs")
        return get(self.address, "/health")[0] == 200


def accuracy(engine, router):
    """Prompts that grow, as far as the one cache holds them all."""
    rows = load.run(router.address, MODEL, seed=engine.name, chats=7, in_flight=4, head=300, turn=250)
    figures = load.summary(rows, block=BLOCK, warm_up=1)
    say(f"{engine.name}, events", figures, figures["failed"] == 0 and figures["within_2_blocks"] >= 0.95)


def crowded(engine, router):
    """Half as much again as the cache holds."""
    rows = load.run(router.address, MODEL, seed=f"{engine.name} crowded", chats=12, in_flight=4, head=300, turn=250)
    figures = load.summary(rows, block=BLOCK, warm_up=1)
    say(f"{engine.name}, more than it holds", figures, figures["failed"] == 0)


def salted(engine, router):
    """What one salt has is nobody else's."""
    told = []
    for salt in ("one", "one", "other", "other", None):
        extra = {"cache_salt": salt} if salt else {}
        rows = load.run(router.address, MODEL, seed="salted", chats=1, turns=1, in_flight=1, head=300, extra=extra)
        told.append((salt, *(load.predicted(rows[0]) or (None, None))))
        # What the request itself expects there counts for a second more.
        until("its events have come", 10, lambda: router.metric("warmroute_kv_events_total", event="stored") > 0)
    apart = all(abs(said - found) <= 2 * BLOCK for _, said, found in told if said is not None)
    say(f"{engine.name}, salts", {"salt, predicted, found": told}, apart and None not in told[0])


def main():
    for page in (16, 1):
        if ONLY and str(page) not in ONLY:
            continue
        engine = Engine(page)
        until(f"{engine.name} is healthy", 900, engine.healthy)
        router = Router([engine], MODEL, "{ type: cache_aware, min_match_tokens: 64 }", events="auto")
        accuracy(engine, router)
        salted(engine, router)
        crowded(engine, router)
        skipped = {reason: count for reason in ("orphan", "not_dense", "unusable_block_size", "malformed")
                   if (count := router.metric("warmroute_kv_events_skipped_total", reason=reason))}
        say(f"{engine.name}, blocks left out", skipped, not skipped)
        router.stop()
        stop(engine.process)


run("sglang", main)
