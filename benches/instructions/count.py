"""Instructions a request: see `run`, which starts this."""
import argparse
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))
import loads  # noqa: E402
import routers  # noqa: E402

# About a tenth above what was counted when they were set; docs/performance.md has the figures. A change that makes the
# router need more says why, and raises them.
BUDGETS = {"round-robin": 59_000, "chunk": 8_400, "cache-aware": 710_000}
KEPT = None
# A copy by one instruction that repeats counts as one for each byte, and from which size on glibc copies so hangs on the
# processor's caches: never, here, so that machines agree.
STEADY = {"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1073741824", "TOKIO_WORKER_THREADS": "1"}
DEFAULT_TOKENIZER = HERE.parent.parent.parent / "shared/tokenizers/qwen3"


class Client:
    """One connection, one request after the other."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: router.example\r\nContent-Type: application/json\r\n"
        head += f"Accept: */*\r\nUser-Agent: OpenAI/Python 1.109.1\r\nAuthorization: Bearer sk-0\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(65536) or self.gone(answer)
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode(errors="replace"))
        length = re.search(rb"content-length: (\d+)", head, re.I)
        whole = (lambda: len(rest) >= int(length.group(1))) if length else (lambda: rest.endswith(b"0\r\n\r\n"))
        while not whole():
            rest += self.socket.recv(65536) or self.gone(rest)

    def gone(self, seen):
        raise RuntimeError(f"the router closed the connection after {seen[-200:]!r}")


class Counted:
    """The router under callgrind; counts only while it is told to."""

    def __init__(self, folder, pools, replicas):
        self.folder, port = folder / "router", routers.free_port()
        self.folder.mkdir()
        urls = "".join(f'\n      - "http://127.0.0.1:{port}"' for port in replicas)
        text = f"listen: 127.0.0.1:{port}\nadmin: off\npools:\n" + pools.replace("$replicas", urls)
        (self.folder / "router.yaml").write_text(text)
        self.counts = folder / "counts"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.counts}"]
        command += [routers.WARMROUTE, "serve", "--config", "router.yaml"]
        self.process = routers.Process("router", self.folder, command, port, STEADY)
        self.process.wait_until(lambda: routers.chats(port), 120)
        self.client = Client(port)

    def count(self, bodies):
        """Instructions, all together, that these take."""
        self.control("-z")
        self.control("-i", "on")
        for body in bodies:
            self.client.send(body)
        self.control("-i", "off")
        for old in self.counts.parent.glob("counts*"):
            old.unlink()
        self.control("-d")
        if KEPT:
            for file in self.counts.parent.glob("counts*"):
                shutil.copy(file, KEPT / f"{self.folder.parent.name}-{file.name}")
        found = [re.search(r"^totals: (\d+)", file.read_text(), re.M) for file in self.counts.parent.glob("counts*")]
        return sum(int(total.group(1)) for total in found if total)

    def control(self, *words):
        subprocess.run(["callgrind_control", *words, str(self.process.child.pid)], check=True, capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stop()
        shutil.rmtree(self.folder)


def round_robin(folder, replicas, _):
    bodies = loads.bodies(next(load for load in loads.LOADS if load.name == "2k"))
    with Counted(folder, routers.ANY, replicas) as router:
        for body in bodies * 2:
            router.client.send(body)
        return router.count(bodies * 10) / (len(bodies) * 10)


def chunk(folder, replicas, _):
    """What one more chunk of a stream takes."""
    load = loads.Load("stream", 2, chunks=64)
    loads.pace(load, replicas)
    few, many = (loads.bodies(loads.Load("stream", 2, chunks=chunks))[:10] for chunks in (8, 72))
    with Counted(folder, routers.ANY, replicas) as router:
        for body in few + many:
            router.client.send(body)
        count = (router.count(many) - router.count(few)) / (64 * len(many))
    loads.pace(loads.Load("whole", 2), replicas)
    return count


def cache_aware(folder, replicas, tokenizer):
    """The fourth turn of conversations of 28 KB, the first three having been asked before."""
    if not (tokenizer / "tokenizer.json").exists():
        return None
    rng = random.Random(28)
    words = re.findall(r"[A-Za-z]+", (HERE.parent / "README.md").read_text())
    system = loads.text(rng, 1_000, words)
    fourth = []
    with Counted(folder, routers.aware(tokenizer.resolve()), replicas) as router:
        for _ in range(20):
            messages = [{"role": "system", "content": system}]
            for turn in range(4):
                messages.append({"role": "user", "content": loads.text(rng, 5_800, words)})
                body = json.dumps({"model": routers.MODEL, "messages": messages, "max_tokens": 8}).encode()
                if turn < 3:
                    router.client.send(body)
                messages.append({"role": "assistant", "content": loads.text(rng, 1_000, words)})
            fourth.append(body)
        return router.count(fourth) / len(fourth)


def main():
    parser = argparse.ArgumentParser(prog="benches/instructions/run", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, default=DEFAULT_TOKENIZER)
    parser.add_argument("--only", action="append", choices=BUDGETS, help="this load; may be given several times")
    parser.add_argument("--keep", type=Path, help="a folder for callgrind's files, which callgrind_annotate reads")
    args = parser.parse_args()
    tokenizer = args.tokenizer
    if args.keep:
        global KEPT
        KEPT = args.keep
        KEPT.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="instructions-", dir=routers.SCRATCH)).resolve()
    started, over = [], False
    try:
        started += [routers.replica(f"replica-{at}", folder) for at in range(2)]
        replicas = [replica.port for replica in started]
        for name, counted in [("round-robin", round_robin), ("chunk", chunk), ("cache-aware", cache_aware)]:
            if args.only and name not in args.only:
                continue
            count = counted(folder, replicas, tokenizer)
            if count is None:
                print(f"instructions: {name}: skipped, no tokenizer at {tokenizer}")
                continue
            exceeded = count > BUDGETS[name]
            over |= exceeded
            print(f"instructions: {name}: {count:.0f}, budget {BUDGETS[name]}{' EXCEEDED' if exceeded else ''}", flush=True)
    finally:
        for process in reversed(started):
            process.stop()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(over)


if __name__ == "__main__":
    main()
