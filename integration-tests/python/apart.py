"""Runs the services as processes of their own, in front of engine doubles, and takes parts away.

    apart.py hits   [--edges N] [--routers N] [--requests N]
    apart.py kills  [--rate R] [--minutes M]

`hits` sends one set of documents through a single process and through processes apart, and
compares what the engines found in their caches. `kills` streams at a steady rate and kills one
part after the other, each started again after ten seconds. Prints JSON; the exit code says
whether what must hold does. Everything listens on loopback and ends with this script.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = "warmpath-double"
VICTIMS = ["edge-0", "router-0", "router-1", "telemetry", "engine-0"]
WORDS = (
    "river stone light window garden paper winter market bridge letter music kitchen forest "
    "train evening harbour"
).split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


class Part:
    """A process that is started, killed and started again on the same ports."""

    def __init__(self, name, command, log, ready):
        self.name, self.command, self.log, self.ready = name, command, log, ready
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def is_ready(self):
        if self.process.poll() is not None:
            tail = open(self.log, errors="replace").read()[-2000:]
            raise SystemExit(f"{self.name} ended: {tail}")
        try:
            return self.ready()
        except OSError:
            return False

    async def await_ready(self, limit=60):
        end = time.monotonic() + limit
        while not self.is_ready():
            if time.monotonic() > end:
                tail = open(self.log, errors="replace").read()[-2000:]
                raise SystemExit(f"{self.name} is not ready: {tail}")
            await asyncio.sleep(0.05)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()


class Cluster:
    """Engines and either one process or parts apart in front of them."""

    def __init__(self, args, edges, routers, nats):
        self.bin, self.folder = args.bin, tempfile.mkdtemp(prefix="apart-")
        self.secret = os.path.join(self.folder, "secret")
        with open(self.secret, "w") as f:
            f.write("a secret of this run")
        os.chmod(self.secret, 0o600)
        self.engines, self.parts, self.edges = {}, {}, []
        for i in range(3):
            self._engine(f"engine-{i}", args)
        if edges == 0:
            self._single()
            return
        if nats:
            port = free_port()
            self.nats = f"nats://127.0.0.1:{port}"
            self._part("nats", [nats, "-a", "127.0.0.1", "-p", str(port)], lambda: _connects(port))
        else:
            self.nats = None
        self.control = free_port()
        self._telemetry()
        for i in range(routers):
            self._member(f"router-{i}", "warmpath-router")
        for i in range(edges):
            self._member(f"edge-{i}", "warmpath-edge")

    def _part(self, name, command, ready):
        self.parts[name] = Part(name, command, os.path.join(self.folder, name + ".log"), ready)

    def _engine(self, name, args):
        port = free_port()
        command = [
            f"{self.bin}/warmpath", "engine", "--port", str(port), "--itl-ms", str(args.itl_ms),
            "--blocks", str(args.blocks),
        ]
        ready = lambda: get(f"http://127.0.0.1:{port}/health") is not None
        self.engines[name] = f"http://127.0.0.1:{port}"
        self._part(name, command, ready)

    def _config(self, name, text):
        path = os.path.join(self.folder, name + ".toml")
        with open(path, "w") as f:
            f.write(text)
        return path

    def _backends(self):
        each = (
            f'[[backends]]\nid = "{n}"\nurl = "{u}"\nengine = "vllm"\n' for n, u in self.engines.items()
        )
        return "\n".join(each) + f'\n[[models]]\nid = "{MODEL}"\nfolder = "builtin"\n'

    def _single(self):
        edge, admin = free_port(), free_port()
        text = f"""[edge]
listen = "127.0.0.1:{edge}"
[admin]
listen = "127.0.0.1:{admin}"
[log]
level = "warn"
{self._backends()}"""
        command = [f"{self.bin}/warmpath", "serve", "--config", self._config("single", text)]
        self._part("single", command, lambda: _ready(admin))
        self.edges = [edge]

    def _shared(self, name):
        return f"""[member]
id = "{name}"
telemetry = "http://127.0.0.1:{self.control}"
[region]
secret = {{ file = "{self.secret}" }}
[log]
level = "info"
"""

    def _telemetry(self):
        admin, store = free_port(), os.path.join(self.folder, "store")
        bus = f'[bus]\nservers = ["{self.nats}"]\n' if self.nats else ""
        text = f"""[admin]
listen = "127.0.0.1:{admin}"
[rpc]
listen = "127.0.0.1:{self.control}"
[telemetry]
store = "{store}"
[region]
secret = {{ file = "{self.secret}" }}
[log]
level = "info"
{bus}{self._backends()}"""
        command = [f"{self.bin}/warmpath-telemetry", "--config", self._config("telemetry", text)]
        self._part("telemetry", command, lambda: _ready(admin))

    def _member(self, name, binary):
        admin = free_port()
        text = f'[admin]\nlisten = "127.0.0.1:{admin}"\n' + self._shared(name)
        if binary == "warmpath-edge":
            edge = free_port()
            self.edges.append(edge)
            text += f'[edge]\nlisten = "127.0.0.1:{edge}"\n[[models]]\nid = "{MODEL}"\nfolder = "builtin"\n'
        else:
            text += f'[rpc]\nlisten = "127.0.0.1:{free_port()}"\n'
        command = [f"{self.bin}/{binary}", "--config", self._config(name, text)]
        self._part(name, command, lambda: _ready(admin))

    async def start(self):
        for part in self.parts.values():
            part.start()
        for part in self.parts.values():
            await part.await_ready()
        return self

    def stop(self):
        for part in reversed(list(self.parts.values())):
            part.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def prefix_cache(self):
        """Prompt tokens looked up, and found, over all engines that answer."""
        asked = found = 0.0
        for url in self.engines.values():
            try:
                page = get(url + "/metrics")
            except OSError:
                continue
            asked += _sum(page, "vllm:prefix_cache_queries_total")
            found += _sum(page, "vllm:prefix_cache_hits_total")
        return asked, found


def _connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def _ready(port):
    try:
        get(f"http://127.0.0.1:{port}/readyz")
        return True
    except OSError:
        return False


def _sum(page, name):
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith(name) and line[len(name)] in " {"
    )


def document(seed, words):
    draw = random.Random(seed)
    return f"Document {seed}. " + " ".join(draw.choice(WORDS) for _ in range(words))


def body(text, tokens):
    message = {"role": "user", "content": text}
    asked = {"model": MODEL, "messages": [message], "max_tokens": tokens, "stream": True}
    return json.dumps(asked).encode()


class Client:
    """Sends to one edge after the other; goes to the next on a refused connection."""

    def __init__(self, ports):
        self.ports, self.turn = ports, 0

    async def ask(self, data):
        """`complete`, `interrupted` (an error event), or what else came of it."""
        self.turn += 1
        for k in range(len(self.ports)):
            port = self.ports[(self.turn + k) % len(self.ports)]
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            try:
                return port, await self._one(reader, writer, data)
            except (OSError, asyncio.IncompleteReadError) as error:
                return port, f"broken: {type(error).__name__}"
            finally:
                writer.close()
        return None, "refused by every edge"

    @staticmethod
    async def _one(reader, writer, data):
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(-1), timeout=120)
        status = answer[9:12].decode(errors="replace")
        if status != "200":
            return f"status {status or 'none'}: {answer[-200:].decode(errors='replace')}"
        if b'"error"' in answer:
            return "interrupted"
        if b"data: [DONE]" in answer and answer.rstrip().endswith(b"0"):
            return "complete"
        return "cut short"


async def run_set(cluster, args):
    """The set of documents, a few requests at a time; the share of prompt tokens found."""
    draw, texts = random.Random(args.seed), [document(i, args.words) for i in range(args.documents)]
    client, outcomes = Client(cluster.edges), {}
    before = cluster.prefix_cache()
    queue = [body(texts[draw.randrange(len(texts))] + f"\n\nQuestion {n}?", 8) for n in range(args.requests)]

    async def worker():
        while queue:
            _, outcome = await client.ask(queue.pop(0))
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    await asyncio.gather(*(worker() for _ in range(args.at_once)))
    after = cluster.prefix_cache()
    asked, found = after[0] - before[0], after[1] - before[1]
    return {"hit_percent": round(100 * found / max(asked, 1), 2), "outcomes": outcomes}


async def hits(args, nats):
    shapes = [(0, 0)] + [(e, r) for e in args.edges for r in args.routers]
    rows = []
    for edges, routers in shapes:
        cluster = Cluster(args, edges, routers, nats)
        try:
            await cluster.start()
            row = await run_set(cluster, args)
        finally:
            cluster.stop()
        rows.append({"edges": edges, "routers": routers, **row})
        print(json.dumps(rows[-1]), file=sys.stderr)
    alone = rows[0]["hit_percent"]
    holds = all(
        abs(row["hit_percent"] - alone) <= 1.0 and set(row["outcomes"]) == {"complete"} for row in rows
    )
    return {"line": "apart", "holds": holds, "figures": {"rows": rows}}


class Stream:
    """Requests at a steady rate, with what became of each and when."""

    def __init__(self, cluster, args):
        self.client, self.args = Client(cluster.edges), args
        self.texts = [document(i, args.words) for i in range(args.documents)]
        self.draw, self.done, self.open, self.sent = random.Random(args.seed), [], set(), 0

    async def run(self, seconds):
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            due = begin + self.sent / self.args.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.sent += 1
            text = self.texts[self.draw.randrange(len(self.texts))]
            task = asyncio.create_task(self._one(body(f"{text}\n\nQuestion {self.sent}?", self.args.tokens)))
            self.open.add(task)
            task.add_done_callback(self.open.discard)
        await asyncio.gather(*self.open)

    async def _one(self, data):
        begin = time.monotonic()
        port, outcome = await self.client.ask(data)
        self.done.append((begin, time.monotonic(), port, outcome))

    def between(self, begin, end):
        counts = {}
        for started, ended, _, outcome in self.done:
            if ended >= begin and started <= end:
                counts[outcome] = counts.get(outcome, 0) + 1
        return counts


async def hit_share(cluster, seconds):
    before = cluster.prefix_cache()
    await asyncio.sleep(seconds)
    after = cluster.prefix_cache()
    return 100 * (after[1] - before[1]) / max(after[0] - before[0], 1)


async def kills(args, nats):
    cluster = Cluster(args, 2, 2, nats)
    phases = []
    victims = args.victims or VICTIMS + (["nats"] if nats else [])
    try:
        await cluster.start()
        stream = Stream(cluster, args)
        share = args.minutes * 60 / (len(victims) + 1)
        load = asyncio.create_task(stream.run(args.minutes * 60))
        await asyncio.sleep(share / 2)
        usual = await hit_share(cluster, share / 2)
        for victim in victims:
            begin = time.monotonic()
            part = cluster.parts[victim]
            part.kill()
            await asyncio.sleep(args.pause)
            part.start()
            await part.await_ready()
            ready = time.monotonic()
            await asyncio.sleep(args.pause)
            again = await hit_share(cluster, max(args.pause, share - (time.monotonic() - begin)))
            counts = stream.between(begin, time.monotonic())
            phases.append(
                {
                    "killed": victim,
                    "outcomes": counts,
                    "ready_again_s": round(ready - begin - args.pause, 2),
                    "hit_percent_before": round(usual, 2),
                    "hit_percent_after": round(again, 2),
                }
            )
            print(json.dumps(phases[-1]), file=sys.stderr)
        await load
    finally:
        cluster.stop()
    holds = all(_as_promised(phase, args.hits_within) for phase in phases)
    totals = {}
    for _, _, _, outcome in stream.done:
        totals[outcome] = totals.get(outcome, 0) + 1
    figures = {"requests": stream.sent, "rate": args.rate, "outcomes": totals, "phases": phases}
    return {"line": "kills", "holds": holds, "figures": figures}


def _as_promised(phase, hits_within):
    """An edge takes its open requests with it, an engine those past their commit point."""
    others = {outcome for outcome in phase["outcomes"] if outcome != "complete"}
    if phase["killed"].startswith("edge"):
        fair = all(outcome.startswith(("broken", "cut short", "status none")) for outcome in others)
    elif phase["killed"].startswith("engine"):
        fair = others <= {"interrupted"}
    else:
        fair = not others
    return fair and phase["hit_percent_after"] >= phase["hit_percent_before"] - hits_within


def numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("line", choices=["hits", "kills"])
    parser.add_argument("--bin", default="target/release", help="folder with the binaries")
    parser.add_argument("--nats", default="", help="nats-server; none: no bus")
    parser.add_argument("--edges", type=numbers, default=[1, 2, 4])
    parser.add_argument("--routers", type=numbers, default=[1, 2, 3])
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--words", type=int, default=1100)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=600)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--itl-ms", type=float, default=5)
    parser.add_argument("--pause", type=float, default=10, help="seconds that a part stays away")
    parser.add_argument("--victims", type=lambda t: t.split(","), help="parts to kill, in turn")
    parser.add_argument("--hits-within", type=float, default=1.0, help="points of the hit rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file too")
    args = parser.parse_args()
    report = asyncio.run((hits if args.line == "hits" else kills)(args, args.nats))
    text = json.dumps(report, indent=2)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")
    sys.exit(0 if report["holds"] else 1)


if __name__ == "__main__":
    main()
