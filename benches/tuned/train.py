"""What a tuned build is laid out by: the loads of benches/peers and conversations, through each kind of pool."""
import argparse
import json
import random
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent / "instructions")]
import count  # noqa: E402
import loads  # noqa: E402
import routers  # noqa: E402

ROUNDS = 6


def conversations(number):
    """The turns of conversations of up to 28 KB, in the order in which they are asked."""
    rng = random.Random(number)
    words = re.findall(r"[A-Za-z]+", (HERE.parent / "README.md").read_text())
    messages = [{"role": "system", "content": loads.text(rng, 1_000, words)}]
    for _ in range(4):
        messages.append({"role": "user", "content": loads.text(rng, 5_800, words)})
        yield json.dumps({"model": routers.MODEL, "messages": messages, "max_tokens": 8}).encode()
        messages.append({"role": "assistant", "content": loads.text(rng, 1_000, words)})


def train(folder, name, pools, replicas):
    router = routers.ours(name, folder, replicas, pools)
    try:
        router.wait_until(lambda: routers.chats(router.port), 120)
        client = count.Client(router.port)
        for load in loads.LOADS:
            if load.http2:
                continue
            loads.pace(load, replicas)
            for _ in range(1 if load.chunks or load.kib > 32 else ROUNDS):
                for body in loads.bodies(load):
                    client.send(body)
        for number in range(8):
            for body in conversations(number):
                client.send(body)
    finally:
        router.stop()


def main():
    parser = argparse.ArgumentParser(prog="benches/tuned/run", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, default=count.DEFAULT_TOKENIZER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        mocks = [routers.replica(f"replica{at}", folder) for at in range(2)]
        ports = [mock.port for mock in mocks]
        tokenizer = options.tokenizer.resolve() if (options.tokenizer / "tokenizer.json").exists() else None
        pools = {"any": routers.ANY, "several": routers.SEVERAL, "aware": routers.aware(tokenizer)}
        try:
            for name, pools in pools.items():
                train(folder, name, pools, ports)
        finally:
            for mock in mocks:
                mock.stop()


main()
