"""vllm.py WARMROUTE SHARED SCRATCH: two real vLLM replicas behind Warmroute, on a CPU. Takes about fifteen minutes.

Needs vLLM in SCRATCH/vllm and models in SCRATCH/models (`tests/engines/run vllm` makes both). Prints a line of figures
for each case, as JSON, and exits with 1 when one of them is not met.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import load

WARMROUTE, SHARED, SCRATCH = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
ONLY = sys.argv[4:]
MODEL = "slow-llama"
# The CPU build's block.
BLOCK = 32
LOGS = SCRATCH / "vllm-logs"
processes = []
missed = []


def free_ports(count):
    """Ports that nobody has just now, `count` in a row."""
    for first in range(21000, 29000, 10):
        held = []
        try:
            for port in range(first, first + count):
                one = socket.socket()
                one.bind(("127.0.0.1", port))
                held.append(one)
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise SystemExit("no ports free")


def spawn(name, command, **env):
    log = open(LOGS / name, "ab")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=SCRATCH, env=os.environ | env, start_new_session=True)
    processes.append(process)
    return process


def stop(process, how=signal.SIGTERM):
    if process.poll() is None:
        os.killpg(process.pid, how)
        process.wait(timeout=60)


def get(address, path, method="GET", body=None):
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise SystemExit(f"not in time: {what}")


class Engine:
    def __init__(self, name, running=None):
        """A new one; or one that runs already, with its event socket at KVPORT and replay after it: `PORT:KVPORT`."""
        self.name, self.process = name, None
        if running:
            self.port, self.events = map(int, running.split(":"))
        else:
            self.port = free_ports(4)
            self.events = self.port + 1
        self.address = f"127.0.0.1:{self.port}"
        if not running:
            self.start()

    def start(self):
        script = SHARED / "engines" / "serve_vllm.sh"
        # The script runs from the folder above its own.
        here = SCRATCH / "scripts" / script.name
        here.parent.mkdir(exist_ok=True)
        here.write_bytes(script.read_bytes())
        command = ["bash", str(here), self.name, str(self.port), str(self.events), f"models/{MODEL}", MODEL]
        self.process = spawn(f"engine-{self.name}", command, VLLM_SERVER_DEV_MODE="1")

    def healthy(self):
        if self.process and self.process.poll() is not None:
            raise SystemExit(f"engine {self.name} ended; see {LOGS}")
        return get(self.address, "/health")[0] == 200

    def kill(self):
        """kill -9 of the server on our port, and of its children."""
        children, server = {}, None
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, parent = int(stat.parent.name), int(stat.read_text().rsplit(")", 1)[1].split()[1])
                command = (stat.parent / "cmdline").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            children.setdefault(parent, []).append(pid)
            if b"vllm.entrypoints.openai.api_server" in command and str(self.port).encode() in command and (
                command[0].endswith(b"python")
            ):
                server = pid
        family = [server]
        for pid in family:
            family.extend(children.get(pid, []))
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()


class Router:
    def __init__(self, engines, policy, events=True, replay=True, tokenizer=True):
        first = free_ports(2)
        self.address, self.admin = f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"
        lines = [f"listen: {self.address}", f"admin: {{ listen: {self.admin} }}", "expose: [127.0.0.0/8]",
                 "logging: { access: false }", "pools:", f"  - model: {MODEL}", "    engine: vllm", f"    policy: {policy}"]
        if tokenizer:
            lines.append(f"    tokenizer: {SCRATCH / 'models' / MODEL}")
        lines.append("    health: { interval: 500ms }")
        # What `--num-gpu-blocks-override` says, for when nothing else does.
        lines.append("    cache_tokens: 16_384")
        lines.append("    replicas:")
        for engine in engines:
            lines.append(f"      - url: http://{engine.address}")
            lines.append(f"        id: {engine.name}")
            if events:
                again = f", replay: \"tcp://127.0.0.1:{engine.events + 1}\"" if replay else ""
                lines.append(f"        kv_events: {{ endpoint: \"tcp://127.0.0.1:{engine.events}\"{again} }}")
        config = LOGS / f"router-{first}.yaml"
        config.write_text("\n".join(lines) + "\n")
        self.process = spawn(f"router-{first}", [str(WARMROUTE), "serve", "--config", str(config)])
        until("the router is ready", 30, lambda: get(self.admin, "/readyz")[0] == 200)
        if events:
            until("events are followed", 30, lambda: self.followed(engines))

    def metric(self, name, **labels):
        lines = get(self.admin, "/metrics")[1].splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        matching = [line for line in lines if line.startswith(name + "{") and all(each in line for each in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in matching)

    def followed(self, engines):
        return all(self.metric("warmroute_kv_events_state", replica=engine.name, state="live") == 1 for engine in engines)

    def stop(self):
        stop(self.process)


def say(case, figures, met):
    print(json.dumps({"case": case, "met": met, **figures}), flush=True)
    if not met:
        missed.append(case)


def reset(engines):
    for engine in engines:
        status, _ = get(engine.address, "/reset_prefix_cache", "POST")
        assert status == 200, status
    # vLLM tells of a reset with its next event.
    for engine in engines:
        load.run(engine.address, MODEL, seed=f"after a reset {time.time()}", chats=1, turns=1, in_flight=1)


def accuracy(engines):
    """Cases 1 and 2, and round robin beside them."""
    shares = {}
    for name, policy, events in [("round_robin", "round_robin", False), ("events", CACHE_AWARE, True),
                                 ("no events", CACHE_AWARE, False), ("least_cost, events", "least_cost", True)]:
        reset(engines)
        router = Router(engines, policy, events=events)
        rows = load.run(router.address, MODEL, seed=f"accuracy {name}")
        figures = load.summary(rows, block=BLOCK, warm_up=1)
        router.stop()
        shares[name] = figures["cached_share"]
        met = figures["failed"] == 0
        if name != "round_robin":
            figures["over_round_robin"] = round(shares[name] / shares["round_robin"], 3)
        if name == "events":
            met &= figures["within_1_block"] >= 0.99 and figures["over_round_robin"] >= 1.3
        if name == "no events":
            met &= figures["within_2_blocks"] >= 0.95
        say(name, figures, met)


def killed(engines):
    """Case 3: kill -9 in mid-load, and back."""
    router = Router(engines, CACHE_AWARE)
    victim = engines[1]
    state = {}

    def after(done):
        if done == 30:
            victim.kill()
            state["killed"] = time.time()
            victim.start()
            threading.Thread(target=watch, daemon=True).start()

    def watch():
        until("the killed engine is healthy again", 900, victim.healthy)
        state["healthy"] = time.time()

    rows = load.run(router.address, MODEL, seed="killed", after=after, turns=4)
    # The load may be over before the engine is back: another follows until it is used.
    until("the killed engine is healthy again", 900, lambda: "healthy" in state)
    later = load.run(router.address, MODEL, seed="killed, later", turns=3)
    router.stop()
    every = rows + later
    lost = [row for row in every if not row.get("done")]
    # A request that was under way when its engine died is lost; none that was sent later is.
    innocent = [row for row in lost if row["began"] > state["killed"]]
    back = [row for row in every if row.get("said", {}).get("x-warmroute-replica") == victim.name
            and row["began"] > state["killed"] + 1]
    first = min((row["began"] for row in back), default=None)
    predictions = [load.predicted(row) for row in sorted(back, key=lambda row: row["began"])]
    opening = [pair[0] for pair in predictions[:1] if pair]
    over = sum(pair is not None and pair[0] > pair[1] + BLOCK for pair in predictions)
    used_after = None if first is None else round(first - state["healthy"], 2)
    figures = {"lost_in_flight": len(lost) - len(innocent), "errors_later": len(innocent),
               "errors": [{"after_kill": round(row["began"] - state["killed"], 2)} | load.told(row) for row in innocent[:3]],
               "first_predictions": opening,
               "over_predicted_after": over, "served_after": len(back), "used_seconds_after_health": used_after}
    say("kill -9", figures, not innocent and opening == [0] and used_after is not None and used_after < 3)


def resets(engines):
    """Case 4: the engine's cache is cleared; the router restarts, with replay and without."""
    router = Router(engines, CACHE_AWARE)
    load.run(router.address, MODEL, seed="resets", chats=6, turns=3)
    router.stop()
    for name, replay in [("router restart, replay", True), ("router restart, no replay", False)]:
        router = Router(engines, CACHE_AWARE, replay=replay) if replay else Router(engines, CACHE_AWARE, events=False)
        rows = load.run(router.address, MODEL, seed="resets", chats=6, turns=3)
        figures = load.summary(rows, block=BLOCK)
        first = [load.predicted(row) for row in rows if row["turn"] == 0]
        figures["first_turns_predicted"] = sum(pair[0] for pair in first)
        figures["first_turns_found"] = sum(pair[1] for pair in first)
        over = sum(said > got + BLOCK for said, got in map(load.predicted, rows))
        figures["over_predicted"] = over
        met = over == 0 and (figures["within_1_block"] >= 0.99 if replay else True)
        say(name, figures, met)
        if replay:
            reset(engines)
            rows = load.run(router.address, MODEL, seed="resets", chats=6, turns=1, in_flight=1)
            pairs = [load.predicted(row) for row in rows]
            over = sum(said > got + BLOCK for said, got in pairs)
            say("cache reset", {"predicted": pairs, "over_predicted": over}, over == 0)
        router.stop()


def served(engine):
    """Requests that an engine has answered."""
    lines = get(engine.address, "/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))


def peers(engines):
    """Case 6: other routers on the same replicas and load, as `benches/peers/run` has installed them into scratch/."""
    urls = [f"http://{engine.address}" for engine in engines]
    port, metrics = free_ports(2), free_ports(2) + 1
    shared = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port",
              str(metrics), "--worker-urls", *urls]
    commands = {
        "SMG, cache_aware": ["peer-smg/bin/smg", "launch", *shared, "--disable-tokenizer-autoload", "--log-level", "warn",
                             "--load-monitor-interval", "1", "--policy", "cache_aware"],
        "SGLang's router, cache_aware": ["peer-sglang/bin/sglang-router", "launch", *shared, "--log-level", "warn",
                                         "--policy", "cache_aware"],
        "vLLM's router, cache_aware": ["peer-vllm/bin/vllm-router", *shared, "--log-level", "warning", "--policy",
                                       "cache_aware"],
        "Warmroute, cache_aware, events": None,
        "Warmroute, round_robin": None,
    }
    for name, command in commands.items():
        if command and not (SCRATCH / command[0]).exists():
            say(name, {"skipped": f"scratch/{command[0]} is not there: run benches/peers/run"}, True)
            continue
        reset(engines)
        if command:
            process = spawn(f"peer-{port}", [str(SCRATCH / command[0]), *command[1:]])
            address = f"127.0.0.1:{port}"
            until(f"{name} answers", 120, lambda: get(address, "/v1/models")[0] == 200)
        else:
            aware = "cache_aware" in name
            router = Router(engines, CACHE_AWARE if aware else "round_robin", events=aware)
            address = router.address
        before = [served(engine) for engine in engines]
        figures = load.summary(load.run(address, MODEL, seed=f"peers {name}"), block=BLOCK)
        counts = [served(engine) - start for engine, start in zip(engines, before)]
        stop(process) if command else router.stop()
        wanted = ["requests", "failed", "cached_share", "ttft_p50_ms", "ttft_p99_ms"]
        row = {key: figures[key] for key in wanted} | {"busiest_over_mean": round(max(counts) / (sum(counts) / 2), 2)}
        say(name, row, figures["failed"] == 0 if not command else True)


CACHE_AWARE = "{ type: cache_aware, min_match_tokens: 64 }"
CASES = {"accuracy": accuracy, "killed": killed, "resets": resets, "peers": peers}


def main():
    LOGS.mkdir(exist_ok=True)
    # For a quick look: `VLLM_RUNNING=PORT:KVPORT,PORT:KVPORT`.
    running = os.environ.get("VLLM_RUNNING", ",").split(",")
    engines = [Engine(name, where) for name, where in zip("ab", running)]
    for engine in engines:
        until(f"engine {engine.name} is healthy", 400, engine.healthy)
    for name, case in CASES.items():
        if not ONLY or name in ONLY:
            case(engines)
    print(f"vllm: {'every case is met' if not missed else 'missed: ' + ', '.join(missed)}")


try:
    main()
finally:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
sys.exit(bool(missed))
