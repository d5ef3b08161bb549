"""Two mocks and a router as processes, and clients that talk to them."""

import os
import re
import subprocess
import threading
import time

import anthropic
import httpx
import openai
import pytest

BINARY = os.environ.get("WARMROUTE", "target/debug/warmroute")


class Process:
    """`warmroute ARGS`, with its output kept and its end assured."""

    def __init__(self, *args):
        self.lines = []
        self.child = subprocess.Popen(
            [BINARY, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        threading.Thread(target=lambda: self.lines.extend(self.child.stdout), daemon=True).start()

    def address(self, pattern):
        end = time.monotonic() + 30
        while time.monotonic() < end and self.child.poll() is None:
            for line in list(self.lines):
                found = re.search(pattern + r"([0-9.]+:[0-9]+)", line.replace('"', ""))
                if found:
                    return found.group(1)
            time.sleep(0.02)
        raise AssertionError(f"no address after {pattern} in:\n" + "".join(self.lines))

    def stop(self):
        self.child.kill()
        self.child.wait()


@pytest.fixture(scope="session")
def mocks():
    started = [
        Process("mock", "--listen", "127.0.0.1:0", "--model", "m", "--prefill-tps", "100000", "--decode-tps", "2000")
        for _ in range(2)
    ]
    yield ["http://" + mock.address("listening on http://") for mock in started]
    for mock in started:
        mock.stop()


@pytest.fixture(scope="session")
def router(mocks):
    """Base URL of the router, and of its admin listener."""
    replicas = [part for url in mocks for part in ("--replica", url)]
    process = Process(
        "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--model", "m", "--policy", "round_robin", *replicas
    )
    urls = ["http://" + process.address(f"listening.*role={role}.*address=") for role in ("proxy", "admin")]
    end = time.monotonic() + 30
    while httpx.get(urls[1] + "/readyz").status_code != 200:
        assert time.monotonic() < end, "not ready:\n" + "".join(process.lines)
        time.sleep(0.05)
    yield urls
    # From now on: the tests may have taken longer than that.
    end = time.monotonic() + 30
    in_flight = 1
    while in_flight and time.monotonic() < end:
        rows = httpx.get(urls[1] + "/replicas").json()
        in_flight = sum(row["in_flight"] for row in (rows if isinstance(rows, list) else rows["replicas"]))
    assert in_flight == 0, "load is not zero at rest"
    process.stop()


@pytest.fixture
def oai(router):
    with openai.OpenAI(base_url=router[0] + "/v1", api_key="key", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def claude(router):
    with anthropic.Anthropic(base_url=router[0], api_key="key", max_retries=0, timeout=30) as client:
        yield client
