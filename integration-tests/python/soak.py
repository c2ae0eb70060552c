"""Hours in minutes: mixed traffic while clients hang up, engines die and come back, are drained and
taken back, and the config is read anew. Every answer is checked.

    soak.py [--minutes N] [--no-reload]

One process of Warmpath before three engine doubles; a fourth double stands aside and says what each
answer must be. Memory, descriptors and tasks are sampled. Prints JSON; the exit code says whether
what must hold does.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time

import parts
from admin import Api, fetch
from parts import Cluster, Part
from soak_traffic import Traffic

ENGINES = ["engine-0", "engine-1", "engine-2"]
# Those that stand in no file: they can be drained.
MANAGED = ENGINES[1:]
# Resident memory at the end over that at ten minutes, or at a third of a shorter run.
RATIO, SETTLED_MINUTES = 1.03, 10
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
# How much more than then descriptors and tasks may be at the end: they follow the traffic.
SPARE = 1.15
# After an engine was killed or is back, for so long answers may be cut off or refused.
UNREST = 3.0
# A process that takes SIGHUP for an end is not ready any more within that.
GOES_ON = 2.0
# Keeps the allocator from huge pages. With them the kernel fills up what lies apart to 2 MiB when
# it comes by, minutes later: resident memory rises by what nobody asked for.
SMALL_PAGES = ("MIMALLOC_ALLOW_THP", "0")


class Unrest:
    """The stretches of time in which an engine was away."""

    def __init__(self):
        self.spans, self.since = [], None

    def begin(self):
        self.since = time.monotonic()

    def end(self):
        self.spans.append((self.since, time.monotonic()))
        self.since = None

    def covers(self, begin, end):
        spans = self.spans + ([(self.since, end)] if self.since else [])
        return any(start - UNREST <= end and begin <= stop + UNREST for start, stop in spans)


class Bed(Cluster):
    """One process before engines, most of them the admin API's, and one engine beside."""

    def __init__(self, args):
        options = ["--itl-ms", "5", "--blocks", "2000", "--prefill-tokens-per-second", "1000000"]
        super().__init__(args.bin, 0, 0, "", {name: options for name in ENGINES}, single=True, managed=MANAGED)
        self.oracle = self._beside("oracle", [f"{args.bin}/warmpath", "engine", *options])

    def _beside(self, name, command):
        port = parts.free_port()
        command = [*command, "--port", str(port)]
        self._part(name, command, lambda: parts.get(f"http://127.0.0.1:{port}/health") is not None)
        return port

    def config(self):
        return os.path.join(self.folder, "single.toml")

    async def start(self):
        await super().start()
        self.api = Api(self.admin_api)
        for name in MANAGED:
            await self.api.put(f"/backends/{name}", {"url": self.engines[name]})
        await self.api.put("/tenants/soak", {})
        limits = {"requests_per_minute": 10_000_000, "max_concurrency": 10_000}
        await self.api.put("/tenants/soak/limits", limits)
        self.key = (await self.api.post("/keys", {"tenant": "soak"}))["key"]
        return self


async def reloads(bed):
    """Whether SIGHUP reads the config anew: tried on a process that does nothing else."""
    port, admin = parts.free_port(), parts.free_port()
    path = os.path.join(bed.folder, "trial.toml")
    with open(path, "w") as f:
        f.write(f'[edge]\nlisten = "127.0.0.1:{port}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n'
                f'[[backends]]\nid = "a"\nurl = "http://127.0.0.1:{bed.oracle}"\n')
    command = [f"{bed.bin}/warmpath", "serve", "--config", path]
    trial = Part("trial", command, os.path.join(bed.folder, "trial.log"), lambda: parts.is_ready(admin))
    trial.start()
    try:
        await trial.await_ready()
        trial.signal(signal.SIGHUP)
        await asyncio.sleep(GOES_ON)
        return trial.process.poll() is None and parts.is_ready(admin)
    finally:
        trial.stop()


class Trouble:
    """What goes on beside the traffic, and how often it did."""

    def __init__(self, bed, args, unrest):
        self.bed, self.args, self.unrest, self.done = bed, args, unrest, {}

    def count(self, what):
        self.done[what] = self.done.get(what, 0) + 1

    async def flaps(self):
        """Engines in turn are killed, and started again after a moment."""
        for n in range(10**6):
            await asyncio.sleep(self.args.every)
            engine = self.bed.parts[ENGINES[n % len(ENGINES)]]
            self.unrest.begin()
            engine.kill()
            await asyncio.sleep(self.args.away)
            engine.start()
            await engine.await_ready()
            self.unrest.end()
            self.count("flaps")

    async def drains(self):
        """Engines in turn are drained, and taken back."""
        for n in range(10**6):
            await asyncio.sleep(self.args.every * 0.7)
            name = MANAGED[n % len(MANAGED)]
            await self.bed.api.post(f"/backends/{name}/drain")
            await asyncio.sleep(self.args.away)
            await self.bed.api.post(f"/backends/{name}/ready")
            self.count("drains")

    async def reloads(self):
        """The config is written with another limit of time, and read anew."""
        with open(self.bed.config()) as f:
            text = f.read()
        for n in range(10**6):
            await asyncio.sleep(self.args.every * 0.9)
            with open(self.bed.config() + ".new", "w") as f:
                f.write(f'{text}\n[edge.timeouts]\nfirst_token = "{100 + n % 20}s"\n')
            os.replace(self.bed.config() + ".new", self.bed.config())
            self.bed.parts["single"].signal(signal.SIGHUP)
            self.count("reloads")


class Samples:
    """Memory, descriptors and tasks of the gateway over time."""

    def __init__(self, bed):
        self.bed, self.rows = bed, []

    async def take(self, period=5):
        begin = time.monotonic()
        while True:
            self.rows.append((time.monotonic() - begin, await self._now()))
            await asyncio.sleep(period)

    async def _now(self):
        part = self.bed.parts["single"]
        folder = f"/proc/{part.process.pid}"
        with open(folder + "/statm") as f:
            resident, of_files = map(int, f.read().split()[1:3])
        with open(folder + "/status") as f:
            huge_pages = "THP_enabled:\t0" not in f.read()
        page = await fetch(self.bed.admin["single"], "/metrics", text=True)
        return {
            "rss_mib": resident * PAGE_MIB,
            # Without the program's own pages, which come and go with what is executed.
            "anonymous_mib": (resident - of_files) * PAGE_MIB,
            "huge_pages": huge_pages,
            "descriptors": len(os.listdir(folder + "/fd")),
            "threads": len(os.listdir(folder + "/task")),
            "tasks": parts.series_sum(page, "warmpath_tasks_running"),
            "panics": parts.series_sum(page, "warmpath_tasks_panicked_total"),
        }

    def around(self, seconds, name, width):
        """The median in a stretch of time."""
        found = [row[name] for at, row in self.rows if seconds - width <= at <= seconds]
        return round(statistics.median(found or [self.rows[-1][1][name]]), 1)


async def run(args):
    os.environ.setdefault(*SMALL_PAGES)
    bed, unrest = Bed(args), Unrest()
    args.model = parts.MODEL
    running, beside = [], {}
    try:
        await bed.start()
        if args.reload and not await reloads(bed):
            args.reload, beside = False, {"reloads": "skipped: SIGHUP does not read the config anew"}
        trouble, samples = Trouble(bed, args, unrest), Samples(bed)
        traffic = Traffic(args, bed.edges[0], bed.oracle, bed.key, unrest)
        begun = [trouble.flaps(), trouble.drains(), samples.take()] + ([trouble.reloads()] if args.reload else [])
        running = [asyncio.ensure_future(work) for work in begun]
        sending = asyncio.ensure_future(traffic.run())
        end, told = time.monotonic() + args.minutes * 60, 0
        while time.monotonic() < end:
            await asyncio.sleep(1)
            for work in [*running, sending]:
                if work.done():
                    work.result()
            told += 1
            if told % 30 == 0:
                print(json.dumps({**samples.rows[-1][1], **traffic.counts}), file=sys.stderr, flush=True)
        traffic.ending = True
        await sending
        left = await at_rest(bed)
    finally:
        for work in running:
            work.cancel()
        await asyncio.to_thread(bed.stop)
    figures = summary(args, traffic, samples, trouble.done | beside, left)
    return {"line": "soak", "holds": holds(figures), "figures": figures}


async def at_rest(bed):
    """Leases and open requests after the last answer: none, soon."""
    names = ["warmpath_router_leases", "warmpath_edge_requests_in_flight"]
    for _ in range(100):
        page = await fetch(bed.admin["single"], "/metrics", text=True)
        left = {name: parts.series_sum(page, name) for name in names}
        if not any(left.values()):
            break
        await asyncio.sleep(0.1)
    return left


def summary(args, traffic, samples, trouble, left):
    end = samples.rows[-1][0]
    settled = min(SETTLED_MINUTES * 60, end / 3)
    width = min(60, settled / 2)
    rss, anonymous = (
        [samples.around(at, name, width) for at in (settled, end)] for name in ("rss_mib", "anonymous_mib"))
    return {
        "minutes": args.minutes,
        "clients": args.clients,
        "requests": sum(traffic.counts.values()),
        "wrong": traffic.counts.get("wrong", 0),
        "outcomes": traffic.counts,
        "examples_of_wrong": traffic.wrong,
        "routes": len(traffic.routes),
        "trouble": trouble,
        "rss_10": rss[0],
        "rss_end": rss[1],
        "ratio": round(rss[1] / rss[0], 4),
        "anonymous_10": anonymous[0],
        "anonymous_end": anonymous[1],
        "huge_pages": samples.rows[-1][1]["huge_pages"],
        "settled_at_minutes": round(settled / 60, 1),
        **{f"{name}_{when}": samples.around(at, name, width)
           for name in ("descriptors", "threads", "tasks") for when, at in (("10", settled), ("end", end))},
        "panics": samples.rows[-1][1]["panics"],
        "left": left,
    }


def holds(figures):
    flat = all(figures[f"{name}_end"] <= figures[f"{name}_10"] * SPARE for name in ("descriptors", "threads", "tasks"))
    return (figures["wrong"] == 0 and figures["panics"] == 0 and figures["ratio"] <= RATIO and flat
            and figures["outcomes"].get("right", 0) > 0 and not any(figures["left"].values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parts.add_arguments(parser)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--reload", action=argparse.BooleanOptionalAction, default=True,
                        help="read the config anew now and then, where SIGHUP does that")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two requests of a client")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--words", type=int, default=150, help="words of a document")
    parser.add_argument("--every", type=float, default=20, help="seconds between two engines that die")
    parser.add_argument("--away", type=float, default=2, help="seconds that one is away")
    parts.main(parser, run)


if __name__ == "__main__":
    main()
