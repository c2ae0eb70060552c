"""Runs the services as processes of their own, in front of engine doubles, and takes parts away.

    apart.py hits   [--edges N] [--routers N] [--requests N]
    apart.py kills   [--rate R] [--minutes M]
    apart.py rolling [--rate R]

`hits` sends one set of documents through a single process and through processes apart, and
compares what the engines found in their caches. `kills` streams at a steady rate and kills one
part after the other, each started again after ten seconds, and holds the leases that routers
count against the requests that engines run; of the engines it takes the one that runs most.
`rolling` restarts everything, one part after the other, each asked to end; engines are drained
before. Prints JSON; the exit code says whether what must hold does. Everything listens on loopback
and ends with this script.
"""

import argparse
import asyncio
import json
import random
import sys
import time

import admin
import load
import parts
from load import Client, Stream, body, document
from parts import Cluster

VICTIMS = ["edge-0", "router-0", "router-1", "telemetry"]


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
    return {
        "hit_percent": round(100 * found / max(asked, 1), 2),
        "outcomes": outcomes,
        "decided_alone": await admin.decided_alone(cluster),
    }


# Documents of the set that is compared, and of the streams: as many as two of the three engines
# hold. A fleet that cannot spare an engine falls behind while one is away (`--documents 12`), and
# the hit rate says then how fast it catches up.
COMPARED, STREAMED = 15, 10


async def hits(args, nats):
    args.documents = args.documents or COMPARED
    shapes = [(0, 0)] + [(e, r) for e in args.edges for r in args.routers]
    rows = []
    for edges, routers in shapes:
        doubles = load.engines(args)
        cluster = Cluster(args.bin, edges, routers, nats, doubles, single=edges == 0)
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


async def hit_share(cluster, seconds):
    before = cluster.prefix_cache()
    await asyncio.sleep(seconds)
    after = cluster.prefix_cache()
    return 100 * (after[1] - before[1]) / max(after[0] - before[0], 1)


class Leases:
    """What routers have booked, beside what engines run."""

    def __init__(self, cluster):
        self.cluster, self.samples, self.ending = cluster, [], False
        self.routers = [
            f"http://127.0.0.1:{port}" for name, port in cluster.admin.items() if "router" in name
        ]

    def _look(self):
        running = ["vllm:num_requests_running", "vllm:num_requests_waiting"]
        booked = self.cluster.total(self.routers, "warmpath_router_leases")
        return booked, self.cluster.total(self.cluster.engines.values(), *running)

    async def watch(self):
        loop = asyncio.get_running_loop()
        while not self.ending:
            at = time.monotonic()
            booked, running = await loop.run_in_executor(None, self._look)
            if booked is not None and running is not None:
                self.samples.append((at, booked, running))
            await asyncio.sleep(0.25)

    def longest_difference(self, room):
        """Seconds for which the two differed by more than requests on their way explain."""
        longest, since = 0.0, None
        for at, booked, running in self.samples:
            if abs(booked - running) <= room:
                since = None
                continue
            since = at if since is None else since
            longest = max(longest, at - since)
        return longest


# A restarted edge's leases end 10 s after its session broke, an owner's tick later; a sample is
# as old as its pages.
ORPHAN_SECONDS = 12.0
# Requests between an engine and a router, of a page that was read earlier than another.
ON_THEIR_WAY = 8


# What an engine that was restarted has lost is computed again within so long.
REFILL_SECONDS = 10.0
# As many requests as a killed engine runs at least, so that some are past their commit point.
RUNNING_AT_LEAST = 4


def running_on(cluster, engine):
    return cluster.total([cluster.engines[engine]], "vllm:num_requests_running") or 0


async def restart(cluster, name):
    """Asks a part to end and starts it again. An engine gets nothing new before, and ends what it has."""
    part, is_engine = cluster.parts[name], name in cluster.engines
    api = admin.Api(cluster.admin_api)
    begin = time.monotonic()
    if is_engine:
        await api.post(f"/backends/{name}/drain")
        while running_on(cluster, name) > 0:
            await asyncio.sleep(0.05)
        await api.post(f"/backends/{name}/maintenance")
    await part.end()
    ended = time.monotonic()
    part.start()
    await part.await_ready()
    if is_engine:
        await api.post(f"/backends/{name}/ready")
    return ended - begin


async def rolling(args, nats):
    args.documents = args.documents or STREAMED
    engines = load.engines(args)
    cluster = Cluster(args.bin, 2, 2, nats, engines, managed=engines)
    order = ["telemetry", "router-0", "router-1", *(["nats"] if nats else []), *engines, "edge-0", "edge-1"]
    phases = []
    try:
        await start_with_backends(cluster)
        stream = Stream(cluster, args)
        sending = asyncio.create_task(stream.run())
        await asyncio.sleep(args.pause)
        usual = await hit_share(cluster, args.pause)
        for name in order:
            begin = time.monotonic()
            took = await restart(cluster, name)
            await asyncio.sleep(REFILL_SECONDS if name in engines else args.pause)
            again = await hit_share(cluster, args.pause)
            phases.append(
                {
                    "restarted": name,
                    "outcomes": stream.between(begin, time.monotonic()),
                    "took_to_end_s": round(took, 2),
                    "hit_percent_before": round(usual, 2),
                    "hit_percent_after": round(again, 2),
                }
            )
            print(json.dumps(phases[-1]), file=sys.stderr)
        stream.ending = True
        await sending
    finally:
        cluster.stop()
    holds = all(
        set(phase["outcomes"]) == {"complete"}
        and phase["hit_percent_after"] >= phase["hit_percent_before"] - args.hits_within
        for phase in phases
    )
    figures = {"rate": args.rate, "outcomes": stream.outcomes(), "phases": phases}
    return {"line": "rolling", "holds": holds, "figures": figures}


async def start_with_backends(cluster):
    """Starts all, and adds the engines by the admin API: each is there and ready at every router."""
    for part in cluster.parts.values():
        part.start()
    for name in ["telemetry", *cluster.engines]:
        await cluster.parts[name].await_ready()
    api = admin.Api(cluster.admin_api)
    for name, url in cluster.engines.items():
        await api.put(f"/backends/{name}", {"url": url})
    # The others are not ready before there is a backend.
    for part in cluster.parts.values():
        await part.await_ready()
    routers = [port for name, port in cluster.admin.items() if name.startswith("router")]
    for port in routers:
        while True:
            ranks = (await admin.fetch(port, "/admin/v1/backends"))["ranks"]
            if [rank["state"] for rank in ranks].count("ready") == len(cluster.engines):
                break
            await asyncio.sleep(0.05)


async def busiest(cluster, limit=20):
    """The engine that runs most, as soon as that are enough; and how many it runs."""
    end = time.monotonic() + limit
    while True:
        running = {name: running_on(cluster, name) for name in cluster.engines}
        name = max(running, key=running.get)
        if running[name] >= RUNNING_AT_LEAST or time.monotonic() > end:
            return name, running[name]
        await asyncio.sleep(0.01)


async def kills(args, nats):
    args.documents = args.documents or STREAMED
    cluster = Cluster(args.bin, 2, 2, nats, load.engines(args))
    phases = []
    # The engine last: its documents go elsewhere meanwhile.
    victims = args.victims or VICTIMS + (["nats"] if nats else []) + ["engine"]
    try:
        await cluster.start()
        stream = Stream(cluster, args)
        share = args.minutes * 60 / (len(victims) + 1)
        sending = asyncio.create_task(stream.run(args.minutes * 60))
        leases = Leases(cluster)
        watching = asyncio.create_task(leases.watch())
        await asyncio.sleep(share / 2)
        usual = await hit_share(cluster, share / 2)
        for victim in victims:
            running = None
            if victim == "engine":
                victim, running = await busiest(cluster)
            elif victim in cluster.engines:
                running = running_on(cluster, victim)
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
                    **({"ran_when_killed": running} if running is not None else {}),
                    "outcomes": counts,
                    "ready_again_s": round(ready - begin - args.pause, 2),
                    "hit_percent_before": round(usual, 2),
                    "hit_percent_after": round(again, 2),
                }
            )
            print(json.dumps(phases[-1]), file=sys.stderr)
        await sending
        leases.ending = True
        await watching
    finally:
        cluster.stop()
    differed = leases.longest_difference(ON_THEIR_WAY)
    holds = all(_as_promised(phase, args.hits_within) for phase in phases)
    holds = holds and differed <= ORPHAN_SECONDS
    figures = {
        "requests": stream.sent,
        "rate": args.rate,
        "outcomes": stream.outcomes(),
        "leases_differed_from_streams_s": round(differed, 2),
        "phases": phases,
    }
    return {"line": "kills", "holds": holds, "figures": figures}


def _as_promised(phase, hits_within):
    """An edge takes its open requests with it, an engine those past their commit point."""
    others = {outcome for outcome in phase["outcomes"] if outcome != "complete"}
    if phase["killed"].startswith("edge"):
        fair = all(outcome.startswith(("broken", "cut short", "status none")) for outcome in others)
    elif phase["killed"].startswith("engine"):
        # One that ran had streams past their commit point, and nobody else was hurt.
        fair = others == {"interrupted"} and phase["outcomes"]["interrupted"] <= phase["ran_when_killed"] + ON_THEIR_WAY
    else:
        fair = not others
    return fair and phase["hit_percent_after"] >= phase["hit_percent_before"] - hits_within


def numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("line", choices=["hits", "kills", "rolling"])
    parts.add_arguments(parser)
    load.add_arguments(parser, words=1100)
    parser.set_defaults(documents=None)
    parser.add_argument("--edges", type=numbers, default=[1, 2, 4])
    parser.add_argument("--routers", type=numbers, default=[1, 2, 3])
    parser.add_argument("--requests", type=int, default=900)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--pause", type=float, default=10, help="seconds that a part stays away")
    parser.add_argument("--victims", type=lambda t: t.split(","), help="parts to kill, in turn")
    parser.add_argument("--hits-within", type=float, default=1.0, help="points of the hit rate")
    lines = {"hits": hits, "kills": kills, "rolling": rolling}
    parts.main(parser, lambda args: lines[args.line](args, args.nats))


if __name__ == "__main__":
    main()
