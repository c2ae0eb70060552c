"""Processes of Warmpath on loopback, for scripts that watch them and take them away.

A `Part` is one process: started, killed and started again on the same ports. A `Cluster` is a
set of engine doubles with either one process or edges, routers and telemetry in front of them.
Everything ends with the script, and nothing else does.
"""

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
ADMIN_TOKEN = "a-token-of-this-run-alone"


_PORTS = iter(random.sample(range(20_000, 32_000), 12_000))


def free_port():
    """One that nothing listens on, from below those that a system gives to connections: one of
    theirs may be in use by the time that a part listens, or listens again after a restart."""
    for port in _PORTS:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port between 20000 and 32000 is free")


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def is_ready(port):
    try:
        get(f"http://127.0.0.1:{port}/readyz")
        return True
    except OSError:
        return False


def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def series_sum(page, name):
    """The sum over all series of a metric on a page."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith(name) and line[len(name)] in " {"
    )


class Part:
    """A process that is started, killed and started again on the same ports."""

    def __init__(self, name, command, log, ready):
        self.name, self.command, self.log, self.ready = name, command, log, ready
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def said(self):
        """What it has written to its standard error so far."""
        with open(self.log, errors="replace") as log:
            return log.read()

    def is_ready(self):
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} ended: {self.said()[-2000:]}")
        try:
            return self.ready()
        except OSError:
            return False

    async def await_ready(self, limit=60):
        end = time.monotonic() + limit
        while not self.is_ready():
            if time.monotonic() > end:
                raise SystemExit(f"{self.name} is not ready: {self.said()[-2000:]}")
            await asyncio.sleep(0.05)

    def cpu_seconds(self):
        """User and system time so far, as the kernel counts it."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            # The name in parentheses may hold spaces: fields are counted from its end.
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def end(self, limit=60):
        """Asks it to end, and waits until it has."""
        self.process.terminate()
        end = time.monotonic() + limit
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise SystemExit(f"{self.name} does not end: {self.said()[-2000:]}")
            await asyncio.sleep(0.05)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()


class Cut:
    """A port before another, that can be cut in two ways.

    `silent`: it takes connections and bytes and passes nothing on, as a network that loses
    everything. `refused`: what is open breaks, and nobody is let in.
    """

    def __init__(self):
        self.port, self.flowing = free_port(), asyncio.Event()
        self.flowing.set()
        self.writers = set()

    async def start(self, target):
        self.target = target
        await self._listen()

    async def _listen(self):
        self.server = await asyncio.start_server(self._join, "127.0.0.1", self.port)

    def cut(self, way):
        if way == "silent":
            self.flowing.clear()
            return
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def heal(self):
        self.flowing.set()
        if not self.server.is_serving():
            await self._listen()

    async def _join(self, reader, writer):
        await self.flowing.wait()
        try:
            onwards = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        pipes = self._pipe(reader, onwards[1]), self._pipe(onwards[0], writer)
        await asyncio.gather(*pipes, return_exceptions=True)

    async def _pipe(self, reader, writer):
        self.writers.add(writer)
        try:
            while data := await reader.read(1 << 16):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        finally:
            self.writers.discard(writer)
            writer.close()


class Cluster:
    """Engines and either one process or parts apart in front of them.

    `single` is one process, whatever the numbers. `engines` has the names of the doubles with
    what their command line has beside the port; those in `managed` stand in no file and can be
    added by the admin API. `beside` is another cluster whose engines are used. `control` is what
    members are told telemetry's port is, for a script that stands between; `fronts` are the ports
    that edges are told of routers, by their names.
    """

    def __init__(
        self, bin, edges, routers, nats, engines, single=False, managed=(), beside=None, control=None,
        fronts=None,
    ):
        self.bin, self.folder = bin, tempfile.mkdtemp(prefix="warmpath-")
        self.secret = self._secret("secret", "a secret of this run")
        self.engines, self.parts, self.edges, self.admin = {}, {}, [], {}
        self.managed = set(managed)
        for name, options in engines.items():
            self._engine(name, options)
        if beside:
            self.engines = dict(beside.engines)
        self.admin_api = free_port()
        if single:
            self._single()
            return
        self.nats = self._nats(nats) if nats else None
        self.fronts, self.rpc = fronts or {}, {}
        self.control = free_port()
        self.control_of_members = control or self.control
        self._telemetry()
        for i in range(routers):
            self._router(f"router-{i}")
        for i in range(edges):
            self._edge(f"edge-{i}")

    def _secret(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o600)
        return path

    def _part(self, name, command, ready):
        self.parts[name] = Part(name, command, os.path.join(self.folder, name + ".log"), ready)

    def _engine(self, name, options):
        port = free_port()
        command = [f"{self.bin}/warmpath", "engine", "--port", str(port), *options]
        self.engines[name] = f"http://127.0.0.1:{port}"
        self._part(name, command, lambda: get(f"http://127.0.0.1:{port}/health") is not None)

    def _nats(self, server):
        port = free_port()
        self._part("nats", [server, "-a", "127.0.0.1", "-p", str(port)], lambda: connects(port))
        return f"nats://127.0.0.1:{port}"

    def _service(self, name, command, text):
        path = os.path.join(self.folder, name + ".toml")
        self.admin[name] = port = free_port()
        with open(path, "w") as f:
            f.write(f'[admin]\nlisten = "127.0.0.1:{port}"\n{text}')
        self._part(name, [*command, "--config", path], lambda: is_ready(port))

    def _common(self):
        return f"""[region]
secret = {{ file = "{self.secret}" }}
[log]
level = "info"
"""

    def _model(self):
        return f'[[models]]\nid = "{MODEL}"\nfolder = "builtin"\n'

    def _desired(self):
        """What the file has of the desired state, and where the rest is changed and kept."""
        token = self._secret("token", ADMIN_TOKEN)
        backends = "".join(
            f'[[backends]]\nid = "{name}"\nurl = "{url}"\nengine = "vllm"\n'
            for name, url in self.engines.items()
            if name not in self.managed
        )
        return f"""[telemetry]
store = "{os.path.join(self.folder, "store")}"
[admin_api]
listen = "127.0.0.1:{self.admin_api}"
[[admin_api.tokens]]
name = "script"
token = {{ file = "{token}" }}
{backends}{self._model()}"""

    def _edge_section(self):
        self.edges.append(free_port())
        return f'[edge]\nlisten = "127.0.0.1:{self.edges[-1]}"\n'

    def _single(self):
        text = self._edge_section() + self._common() + self._desired()
        self._service("single", [f"{self.bin}/warmpath", "serve"], text)

    def _bus(self):
        return f'[bus]\nservers = ["{self.nats}"]\n' if self.nats else ""

    def _telemetry(self):
        rpc = f'[rpc]\nlisten = "127.0.0.1:{self.control}"\n'
        text = rpc + self._bus() + self._common() + self._desired()
        self._service("telemetry", [f"{self.bin}/warmpath-telemetry"], text)

    def _membership(self, name):
        telemetry = f"http://127.0.0.1:{self.control_of_members}"
        return f'[member]\nid = "{name}"\ntelemetry = "{telemetry}"\n' + self._common()

    def _router(self, name):
        self.rpc[name] = port = free_port()
        rpc = f'[rpc]\nlisten = "127.0.0.1:{port}"\n'
        if name in self.fronts:
            rpc += f'address = "http://127.0.0.1:{self.fronts[name]}"\n'
        text = rpc + self._bus() + self._membership(name)
        self._service(name, [f"{self.bin}/warmpath-router"], text)

    def _edge(self, name):
        text = self._edge_section() + self._membership(name) + self._model()
        self._service(name, [f"{self.bin}/warmpath-edge"], text)

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

    def total(self, ports, *names):
        """The sum of these series over the pages of all that answer; None if nobody does."""
        pages = []
        for url in ports:
            try:
                pages.append(get(url + "/metrics", timeout=1))
            except OSError:
                continue
        return sum(series_sum(page, name) for page in pages for name in names) if pages else None

    def prefix_cache(self):
        """Prompt tokens looked up, and found, over all engines that answer."""
        asked = found = 0.0
        for url in self.engines.values():
            try:
                page = get(url + "/metrics")
            except OSError:
                continue
            asked += series_sum(page, "vllm:prefix_cache_queries_total")
            found += series_sum(page, "vllm:prefix_cache_hits_total")
        return asked, found


def percentile(values, share):
    """The value below which a share of them lies; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def add_arguments(parser):
    """What every script takes."""
    parser.add_argument("--bin", default="target/release", help="folder with the binaries")
    parser.add_argument("--nats", default="", help="nats-server; none: no bus")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file too")


def main(parser, run):
    """Parses, runs and prints the report; ends the script with 0 if what must hold does."""
    args = parser.parse_args()
    # So that what was started is ended too when the script is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = asyncio.run(run(args))
    text = json.dumps(report, indent=2)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")
    sys.exit(0 if report["holds"] else 1)
