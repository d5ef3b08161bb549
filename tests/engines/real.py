"""What the runs on real engines share: processes that end with the run, a router before two replicas, and what is said.

Call with WARMROUTE SHARED SCRATCH and what to run. Prints a line of figures for each case, as JSON, and exits with 1 when
one of them is not met. Servers listen on loopback, on ports that nobody had.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

WARMROUTE, SHARED, SCRATCH = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
ONLY = sys.argv[4:]
LOGS = SCRATCH / "engine-logs"
processes = []
missed = []
given = set()


def free_ports(count):
    """Ports that nobody has just now, `count` in a row, and that nobody was given before: an engine takes its time to bind."""
    for first in range(21000, 29000, 10):
        if first in given:
            continue
        held = []
        try:
            for port in range(first, first + count):
                one = socket.socket()
                one.bind(("127.0.0.1", port))
                held.append(one)
            given.add(first)
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


class Router:
    """Warmroute before these engines, which have `name`, `address` and `events`, the port of their events."""

    def __init__(self, engines, model, policy, events=True):
        first = free_ports(2)
        self.address, self.admin = f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"
        lines = [f"listen: {self.address}", f"admin: {{ listen: {self.admin} }}", "expose: [127.0.0.0/8]",
                 "logging: { access: false }", "pools:", f"  - model: {model}", f"    policy: {policy}",
                 f"    tokenizer: {SCRATCH / 'models' / model}"]
        lines.append("    health: { interval: 500ms }")
        if events == "auto":
            lines.append("    kv_events: auto")
        lines.append("    replicas:")
        for engine in engines:
            lines.append(f"      - url: http://{engine.address}")
            lines.append(f"        id: {engine.name}")
            if events is True:
                endpoint, replay = (f"tcp://127.0.0.1:{engine.events + at}" for at in (0, 1))
                lines.append(f'        kv_events: {{ endpoint: "{endpoint}", replay: "{replay}" }}')
        config = LOGS / f"router-{first}.yaml"
        config.write_text("\n".join(lines) + "\n")
        self.process = spawn(f"router-{first}", [str(WARMROUTE), "serve", "--config", str(config)])
        until("the router is ready", 30, lambda: get(self.admin, "/readyz")[0] == 200)
        # What it keeps, the engine says itself.
        until("engines tell of their caches", 30, lambda: all(
            self.metric("warmroute_engine_scrapes_total", replica=engine.name, result="ok") for engine in engines))
        if events:
            until("events are followed", 30, lambda: self.followed(engines))

    def metric(self, name, **labels):
        lines = get(self.admin, "/metrics")[1].splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        matching = [line for line in lines if line.startswith(name + "{") and all(each in line for each in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in matching)

    def followed(self, engines):
        return all(self.metric("warmroute_kv_events_state", replica=engine.name, state="live") == 1
                   for engine in engines)

    def stop(self):
        stop(self.process)


def say(case, figures, met):
    print(json.dumps({"case": case, "met": met, **figures}), flush=True)
    if not met:
        missed.append(case)


def script(name):
    """A recipe of ../shared/engines, where it can be run: it goes to the folder above its own."""
    here = SCRATCH / "scripts" / name
    here.parent.mkdir(exist_ok=True)
    here.write_bytes((SHARED / "engines" / name).read_bytes())
    return str(here)


def run(name, main):
    """Runs it, ends what it started, and says how it went."""
    LOGS.mkdir(exist_ok=True)
    try:
        main()
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print(f"{name}: {'every case is met' if not missed else 'missed: ' + ', '.join(missed)}")
    sys.exit(bool(missed))
