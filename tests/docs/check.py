"""check.py BINARY: what the documents say is so.

Links between files resolve, headings they point at exist, commands and flags in code blocks are known to the binary,
files that are named exist, examples in config/ pass `check`, and the Dockerfile's build is the one CI runs.
"""

import glob
import os
import re
import subprocess
import sys

BINARY = sys.argv[1]
failures = []
checked = 0


def expect(condition, what):
    global checked
    checked += 1
    if not condition:
        failures.append(what)


def run(*args):
    done = subprocess.run([BINARY, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def anchor(heading):
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def tracked(pattern):
    done = subprocess.run(["git", "ls-files", "--", pattern], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def check_links(path, text):
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        linked = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        expect(os.path.exists(linked), f"{path}: the link {target} leads nowhere")
        if fragment and os.path.isfile(linked):
            with open(linked) as other:
                headings = re.findall(r"^#+ (.*)$", other.read(), flags=re.M)
            expect(fragment in map(anchor, headings), f"{path}: {linked} has no heading #{fragment}")


def check_commands(path, text):
    """Each `warmroute COMMAND --flag` in code is known to the binary."""
    code = re.findall(r"```[a-z]*\n(.*?)```", text, flags=re.S) + re.findall(r"`([^`\n]+)`", text)
    for block in code:
        for line in block.replace("\\\n", " ").split("\n"):
            called = re.search(r"(?:^|[\s/])warmroute ([a-z]+)\b(.*)", line) or re.search(r"cargo run .*-- ([a-z]+)\b(.*)", line)
            if not called:
                continue
            command, rest = called.groups()
            code_, help_ = run(command, "--help")
            expect(code_ == 0, f"{path}: there is no `warmroute {command}`")
            for flag in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", rest):
                expect(re.search(re.escape(flag) + r"\b", help_), f"{path}: `warmroute {command}` has no {flag}")
            for file in re.findall(r"(?<!\S)((?:config|docs|tests)/[\w./-]+)", rest):
                expect(os.path.exists(file), f"{path}: {file} does not exist")
    for file in re.findall(r"`((?:src|tests|docs|config|benches|deploy|\.ci)/[\w./-]*)`", text):
        expect(os.path.exists(file), f"{path}: `{file}` does not exist")


def check_tests(path, text):
    """Tests that a guarantee names are there."""
    for name in re.findall(r"`([a-z_/]+\.rs)`", text):
        if not name.startswith(("src/", "tests/", "benches/")):
            expect(os.path.exists(f"tests/it/{name}"), f"{path}: there is no test tests/it/{name}")


def check_dockerfile():
    with open("Dockerfile") as file:
        text = file.read()
    with open(".ci/run") as file:
        ci = file.read()
    build = re.search(r"cargo build --release --locked[^\n]*", text)
    expect(build and build.group(0) in ci, "Dockerfile: its build line is not one that .ci/run runs")
    # The toolchain is the one that Cargo.toml asks for.
    with open("Cargo.toml") as file:
        version = re.search(r'^rust-version = "([^"]+)"', file.read(), flags=re.M).group(1)
    expect(f"FROM rust:{version}-" in text, f"Dockerfile: its toolchain is not rust-version {version}")
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.M):
        for file in copied.split():
            expect(os.path.exists(file), f"Dockerfile: it copies {file}, which does not exist")
    expect(re.search(r"^USER [1-9]", text, flags=re.M), "Dockerfile: it runs as root")
    command = re.search(r'^CMD \["(\w+)"', text, flags=re.M).group(1)
    expect(run(command, "--help")[0] == 0, f"Dockerfile: there is no `warmroute {command}`")


def check_examples():
    for example in sorted(glob.glob("config/*.yaml")):
        with open(example) as file:
            names = set(re.findall(r"\$\{(\w+)\}", file.read()))
        environment = {**os.environ, **{name: "a-secret-value" for name in names}}
        done = subprocess.run([BINARY, "check", example], capture_output=True, text=True, env=environment)
        expect(done.returncode == 0, f"{example}: {done.stdout}{done.stderr}")


documents = [path for path in tracked("*.md") if not path.startswith("tests/fixtures/")]
for document in documents:
    with open(document) as file:
        content = file.read()
    check_links(document, content)
    check_commands(document, content)
    if document == "README.md":
        check_tests(document, content)
check_dockerfile()
check_examples()
for failure in failures:
    print("docs:", failure)
print(f"docs: {len(documents)} documents, {checked} claims checked, {len(failures)} wrong")
sys.exit(bool(failures))
