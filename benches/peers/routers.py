"""The routers: how each is started before the same replicas, and what its processes have used."""
import os
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
SCRATCH = Path(os.environ.get("SCRATCH", HERE.parent.parent / "scratch"))
WARMROUTE = os.environ.get("WARMROUTE", str(HERE.parent.parent / "target/release/warmroute"))
# What benches/tuned/run builds; its rows are there where it is.
TUNED = SCRATCH / "tuned/warmroute"
MODEL = "peer-model"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A process on a port of its own, with whatever it starts; ended with `stop`."""

    def __init__(self, name, folder, command, port, env=None):
        self.name, self.port = name, port
        log = open(folder / f"{name}.log", "wb")
        self.log = folder / f"{name}.log"
        self.child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env={**os.environ, **(env or {})}
        )
        log.close()

    def wait_until(self, answers, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.child.poll() is not None:
                break
            try:
                if answers():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.name} did not come up:\n{self.log.read_text(errors='replace')[-2000:]}")

    def ids(self):
        """Its process and all below it."""
        found, open_ = [], [self.child.pid]
        while open_:
            pid = open_.pop()
            found.append(pid)
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    open_ += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
            except OSError:
                pass
        return found

    def cpu(self):
        """Nanoseconds of CPU, user and system, of all threads so far."""
        total = 0
        for pid in self.ids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                try:
                    total += int((task / "schedstat").read_text().split()[0])
                except OSError:
                    pass
        return total

    def resident(self):
        """Resident bytes."""
        total = 0
        for pid in self.ids():
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            total += int(found.group(1)) * 1024 if found else 0
        return total

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def post(port, path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=body.encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status == 200 and answer.read()


def chats(port):
    body = '{"model":"%s","messages":[{"role":"user","content":"Hello"}],"max_tokens":1}' % MODEL
    return post(port, "/v1/chat/completions", body)


def replica(name, folder):
    """A virtual engine that answers at once."""
    port = free_port()
    command = [WARMROUTE, "mock", "--listen", f"127.0.0.1:{port}", "--model", MODEL]
    command += ["--prefill-tps", "0", "--decode-tps", "0", "--cache-tokens", "10000000"]
    process = Process(name, folder, command, port, {"TOKIO_WORKER_THREADS": "1"})
    process.wait_until(lambda: chats(port))
    return process


def ours(name, folder, replicas, pools, threads="1", binary=WARMROUTE):
    port = free_port()
    urls = "".join(f'\n      - "http://127.0.0.1:{port}"' for port in replicas)
    text = f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{free_port()}\npools:\n" + pools.replace("$replicas", urls)
    # It watches its folder, in which nobody else should write.
    folder = folder / name
    folder.mkdir()
    (folder / "router.yaml").write_text(text)
    env = {"TOKIO_WORKER_THREADS": threads} if threads else {}
    # The access log is on, as is its default, and is written to standard output.
    return Process(name, folder, [str(binary), "serve", "--config", "router.yaml"], port, env)


ANY = "  - models: any\n    policy: round_robin\n    replicas:$replicas\n"
SEVERAL = (
    f"  - model: {MODEL}\n    policy: round_robin\n    replicas:$replicas\n"
    "  - model: another\n    policy: round_robin\n    replicas:$replicas\n"
)


def aware(tokenizer):
    # The mocks count four bytes as a token.
    tokens = f'    tokenizer: "{tokenizer}"\n    tokens: {{ parity: false }}\n' if tokenizer else ""
    return f"  - model: {MODEL}\n    policy: cache_aware\n{tokens}    replicas:$replicas\n"


NGINX = """
worker_processes 1;
daemon off;
user root;
pid $folder/nginx.pid;
error_log $folder/nginx-errors.log warn;
events { worker_connections 16384; }
http {
  access_log off;
  client_body_temp_path $folder/nginx-body;
  proxy_temp_path $folder/nginx-proxy;
  fastcgi_temp_path $folder/nginx-fcgi;
  uwsgi_temp_path $folder/nginx-uwsgi;
  scgi_temp_path $folder/nginx-scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_timeout 75s;
  keepalive_requests 1000000;
  upstream replicas { $servers keepalive 512; keepalive_requests 1000000; keepalive_timeout 4s; }
  server {
    listen 127.0.0.1:$port backlog=4096;
    listen 127.0.0.1:$h2port http2 backlog=4096;
    location / {
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
      proxy_read_timeout 3600s;
      proxy_connect_timeout 2s;
      proxy_next_upstream error timeout;
    }
  }
}
"""


def nginx(name, folder, replicas):
    port, h2port = free_port(), free_port()
    servers = " ".join(f"server 127.0.0.1:{each} max_fails=3 fail_timeout=10s;" for each in replicas)
    text = NGINX.replace("$folder", str(folder)).replace("$servers", servers)
    text = text.replace("$port", str(port)).replace("$h2port", str(h2port))
    (folder / "nginx.conf").write_text(text)
    # `-e`: before the file is read, it would log to the system's place.
    command = ["/usr/sbin/nginx", "-e", str(folder / "nginx-errors.log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = Process(name, folder, command, port)
    process.h2port = h2port
    return process


HAPROXY = """
global
  maxconn 8000
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout client 3600s
  timeout server 3600s
  timeout http-request 10s
  timeout http-keep-alive 75s
  option http-keep-alive
  http-reuse always
  retry-on conn-failure
  retries 2
  option redispatch
frontend fe
  bind 127.0.0.1:$port
  default_backend replicas
backend replicas
  balance roundrobin
  option httpchk GET /health
  option forwardfor
"""


def haproxy(name, folder, replicas):
    port = free_port()
    text = HAPROXY.replace("$port", str(port))
    for at, each in enumerate(replicas):
        text += f"  server s{at} 127.0.0.1:{each} check inter 2s maxconn 4096 pool-max-conn 512 pool-purge-delay 4s\n"
    (folder / "haproxy.cfg").write_text(text)
    return Process(name, folder, ["/usr/sbin/haproxy", "-f", "haproxy.cfg"], port)


def envoy(name, folder, replicas):
    port = free_port()
    text = (HERE / "envoy.yaml").read_text().replace("$port", str(port)).replace("$admin", str(free_port()))
    one = "\n        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %d } } }"
    text = text.replace("$endpoints", "".join(one % each for each in replicas))
    (folder / "envoy.yaml").write_text(text)
    command = [str(SCRATCH / "peer-envoy/bin/envoy"), "-c", "envoy.yaml", "--concurrency", "1", "--log-level", "error"]
    return Process(name, folder, command, port)


def rust_router(venv, words, level, policy, extra=()):
    """SMG and those that came from it: the same arguments."""

    def start(name, folder, replicas):
        port = free_port()
        command = [str(SCRATCH / venv / "bin" / words[0]), *words[1:], "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", level]
        command += ["--policy", policy, *extra, "--worker-urls", *(f"http://127.0.0.1:{each}" for each in replicas)]
        return Process(name, folder, command, port, {"TOKIO_WORKER_THREADS": "1"})

    return start


def table(tokenizer):
    """Every router by name, in the order of the table."""
    smg = ("peer-smg", ["smg", "launch"], "warn")
    smg_more = ["--disable-tokenizer-autoload", "--load-monitor-interval", "1"]
    sglang = ("peer-sglang", ["sglang-router", "launch"], "warn")
    vllm = ("peer-vllm", ["vllm-router"], "warning")
    tuned = {
        "tuned": lambda *at: ours(*at, ANY, binary=TUNED),
        "tuned-models": lambda *at: ours(*at, SEVERAL, binary=TUNED),
        "tuned-aware": lambda *at: ours(*at, aware(tokenizer), binary=TUNED),
    }
    return (tuned if TUNED.exists() else {}) | {
        "ours": lambda *at: ours(*at, ANY),
        "ours-models": lambda *at: ours(*at, SEVERAL),
        "ours-aware": lambda *at: ours(*at, aware(tokenizer)),
        "ours-threads": lambda *at: ours(*at, ANY, threads=None),
        "nginx": nginx,
        "haproxy": haproxy,
        "envoy": envoy,
        "smg": rust_router(*smg, "round_robin", smg_more),
        "smg-aware": rust_router(*smg, "cache_aware", smg_more),
        "sglang": rust_router(*sglang, "round_robin"),
        "sglang-aware": rust_router(*sglang, "cache_aware"),
        "vllm": rust_router(*vllm, "round_robin"),
        "vllm-aware": rust_router(*vllm, "cache_aware"),
    }
