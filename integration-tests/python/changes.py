"""Changes a backend and revokes keys while streams run, and times who follows.

    changes.py [--rate R] [--rounds N] [--keys N] [--cut SECONDS]

Two edges, two routers and telemetry run apart over gRPC and NATS. One of three engines is added,
drained, maintained, made ready, removed and added again by the admin API, and once by the command
line. Then the watch of telemetry and the bus are cut: a removal is missed, and a key is revoked
behind everybody's back. Prints JSON; the exit code says whether what must hold does.

How it is seen that all agree: each router lists its ranks with their states
(`GET /admin/v1/backends`); the engine serves an adapter that no other has, so an edge lists it
(`GET /v1/models`) exactly while it knows the engine as ready; and each tells the revision that it
goes by (`warmpath_feed_revision`). All are asked every few milliseconds, each for itself.
"""

import argparse
import asyncio
import os
import signal
import time

import load
import parts
from admin import Api, decided_alone, fetch
from load import Client, Stream, body
from parts import Cluster, Cut

ENGINE, ADAPTER, TENANT = "engine-2", "of-engine-2", "streams"
POLL = 0.004
# Everybody agrees, and a revoked key stops, within so many seconds of the answer.
WITHIN = 1.0
# An edge or router that does not reach telemetry tries again after two seconds at the latest.
HEALING_PERIOD = 2.0
STEPS = ["add", "drain", "maintenance", "ready", "remove", "add", "remove"]
STATES = {"add": "ready", "drain": "draining", "maintenance": "maintenance", "ready": "ready"}


class Scene:
    """The cluster under load, with what is changed in it."""

    def __init__(self, cluster, api, key):
        self.cluster, self.api, self.key = cluster, api, key
        self.routers = [name for name in cluster.admin if name.startswith("router")]
        self.edges = dict(zip([n for n in cluster.admin if n.startswith("edge")], cluster.edges))

    async def router_sees(self, name):
        """The state of the engine's ranks at a router; None where it has none."""
        told = await fetch(self.cluster.admin[name], "/admin/v1/backends")
        return next((rank["state"] for rank in told["ranks"] if rank["backend"] == ENGINE), None)

    async def edge_lists(self, name):
        models = await fetch(self.edges[name], "/v1/models", self.key)
        return any(model["id"] == ADAPTER for model in models["data"])

    async def revision(self, name):
        page = await fetch(self.cluster.admin[name], "/metrics", text=True)
        return parts.series_sum(page, "warmpath_feed_revision")

    async def router_agrees(self, name, state):
        while await self.router_sees(name) != state:
            await asyncio.sleep(POLL)
        return time.monotonic()

    async def edge_agrees(self, name, state, revision):
        # The key that it is asked with may be as new as that revision.
        while await self.revision(name) < revision:
            await asyncio.sleep(POLL)
        while await self.edge_lists(name) != (state == "ready"):
            await asyncio.sleep(POLL)
        return time.monotonic()

    async def all_agree(self, state, revision, limit=30):
        """When each of them does, by name."""
        asked = {name: self.router_agrees(name, state) for name in self.routers}
        asked |= {name: self.edge_agrees(name, state, revision) for name in self.edges}
        try:
            moments = await asyncio.wait_for(asyncio.gather(*asked.values()), limit)
        except TimeoutError:
            raise SystemExit(f"not all agree on {state} within {limit} s")
        return dict(zip(asked, moments))

    async def tokens_asked(self):
        """Prompt tokens that the engine has looked up: it grows with every request it gets."""
        port = int(self.cluster.engines[ENGINE].rsplit(":", 1)[1])
        page = await fetch(port, "/metrics", text=True)
        return parts.series_sum(page, "vllm:prefix_cache_queries_total")

    async def change(self, step, by_command=False):
        """One change; when it was sent, when answered, and when each agrees."""
        begin = time.monotonic()
        if by_command:
            await self._command(step)
        elif step == "add":
            await self.api.put(f"/backends/{ENGINE}", {"url": self.cluster.engines[ENGINE]})
        elif step == "remove":
            await self.api.delete(f"/backends/{ENGINE}")
        else:
            await self.api.post(f"/backends/{ENGINE}/{step}")
        answered = time.monotonic()
        revision = (await self.api.get("/status"))["store"]["revision"]
        moments = await self.all_agree(STATES.get(step), revision)
        after = {name: round(1000 * (moment - answered), 1) for name, moment in moments.items()}
        answer = round(1000 * (answered - begin), 1)
        return {"step": step, "answered_ms": answer, "agreed_ms": after, "slowest_ms": max(after.values())}

    async def _command(self, step):
        url = [self.cluster.engines[ENGINE]] if step == "add" else []
        token = os.path.join(self.cluster.folder, "token")
        command = [f"{self.cluster.bin}/warmpath", "backend", step, ENGINE, *url]
        command += ["--admin", f"http://127.0.0.1:{self.cluster.admin_api}", "--token-file", token]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        if await process.wait():
            raise SystemExit(f"{' '.join(command)} failed")


async def rounds(scene, args):
    """Every step so many times, and what the engine was asked while it should not have been."""
    rows, unwanted = [], 0
    for turn in range(args.rounds):
        for step in STEPS:
            before = await scene.tokens_asked()
            row = await scene.change(step, by_command=turn == args.rounds - 1)
            rows.append(row)
            if row["step"] in ("maintenance", "ready", "add") and len(rows) > 1:
                # Since the step before, when all had agreed that it takes nothing.
                unwanted += before - settled
            # What was on its way to it arrives meanwhile.
            await asyncio.sleep(args.pause / 2)
            settled = await scene.tokens_asked()
            await asyncio.sleep(args.pause / 2)
    return rows, unwanted


async def asks_on(scene, name, key, until):
    """Asks an edge with a key, without a pause: the moments and outcomes of each request."""
    client, seen = Client([scene.edges[name]], key), []
    while time.monotonic() < until():
        begin = time.monotonic()
        _, outcome = await client.ask(body("Hello", 1))
        seen.append((begin, time.monotonic(), outcome))
    return seen


async def revoke(scene):
    """A key is made, used at every edge without a pause, and revoked; when each edge stops."""
    made = await scene.api.post("/keys", {"tenant": TENANT})
    end = [float("inf")]
    asking = {
        name: asyncio.create_task(asks_on(scene, name, made["key"], lambda: end[0]))
        for name in scene.edges
    }
    await asyncio.sleep(0.5)
    sent = time.monotonic()
    await scene.api.delete(f"/keys/{made['id']}")
    answered = time.monotonic()
    end[0] = answered + 1.5 * WITHIN
    row = {"answered_ms": round(1000 * (answered - sent), 1), "last_served_ms": {}, "refused_ms": {}}
    for name, task in asking.items():
        seen = await task
        served = [begin for begin, _, outcome in seen if outcome == "complete"]
        refused = [ended for _, ended, outcome in seen if outcome.startswith("status 401") and ended > sent]
        if len(served) < 3 or not refused:
            raise SystemExit(f"{name} did not serve a new key, or never refused it: {seen[-3:]}")
        row["last_served_ms"][name] = round(1000 * (served[-1] - answered), 1)
        row["refused_ms"][name] = round(1000 * (refused[0] - answered), 1)
    return row


async def cut(scene, cutter, stream, seconds, way):
    """A removal and a revoked key that nobody hears of for so long."""
    await scene.change("add")
    made = await scene.api.post("/keys", {"tenant": TENANT})
    await asyncio.sleep(1)
    begin = time.monotonic()
    cutter.cut(way)
    bus = scene.cluster.parts.get("nats")
    if bus:
        bus.signal(signal.SIGSTOP)
    await scene.api.delete(f"/backends/{ENGINE}")
    await scene.api.delete(f"/keys/{made['id']}")
    revision = (await scene.api.get("/status"))["store"]["revision"]
    await asyncio.sleep(seconds)
    missed = [await scene.router_sees(name) for name in scene.routers] == ["ready"] * len(scene.routers)
    missed &= all([await scene.edge_lists(name) for name in scene.edges])
    if bus:
        bus.signal(signal.SIGCONT)
    healed = time.monotonic()
    await cutter.heal()
    moments = await scene.all_agree(None, revision)
    after = {name: round(1000 * (moment - healed), 1) for name, moment in moments.items()}
    refused = [await Client([port], made["key"]).ask(body("Hello", 1)) for port in scene.edges.values()]
    return {
        "way": way,
        "cut_s": round(healed - begin, 1),
        "missed_until_then": missed,
        "agreed_ms": after,
        "slowest_ms": max(after.values()),
        "revoked_key_refused": all(outcome.startswith("status 401") for _, outcome in refused),
        "outcomes": stream.between(begin, time.monotonic()),
    }


async def run(args):
    doubles = load.engines(args)
    doubles[ENGINE] += ["--adapter", ADAPTER]
    cutter = Cut()
    cluster = Cluster(
        args.bin, 2, 2, args.nats, doubles, managed=[ENGINE], control=cutter.port
    )
    try:
        await cutter.start(cluster.control)
        await cluster.start()
        api = Api(cluster.admin_api)
        await api.put(f"/tenants/{TENANT}", {})
        made = await api.post("/keys", {"tenant": TENANT})
        scene = Scene(cluster, api, made["key"])
        await scene.all_agree(None, made["revision"])
        stream = Stream(cluster, args, made["key"])
        sending = asyncio.create_task(stream.run())
        await asyncio.sleep(args.pause)
        rows, unwanted = await rounds(scene, args)
        alone = {"changes": await decided_alone(scene.cluster)}
        keys = [await revoke(scene) for _ in range(args.keys)]
        alone["keys"] = await decided_alone(scene.cluster)
        figures = {"changes": rows, "asked_while_away_tokens": unwanted, "keys": keys, "cuts": []}
        for way in ["silent", "refused"] if args.cut else []:
            figures["cuts"].append(await cut(scene, cutter, stream, args.cut, way))
            # What a list of members that comes back changes is over by then.
            await asyncio.sleep(5)
            alone[way] = await decided_alone(scene.cluster)
        figures["decided_alone_so_far"] = alone
        stream.ending = True
        await sending
    finally:
        # Beside the loop: parts that end still have something to say through the cut port.
        await asyncio.to_thread(cluster.stop)
    figures |= {"requests": stream.sent, "rate": args.rate, "outcomes": stream.outcomes()}
    figures["load_average"] = os.getloadavg()
    return {"line": "changes", "holds": holds(figures), "figures": figures | slowest(figures)}


def holds(figures):
    return (
        set(figures["outcomes"]) == {"complete"}
        and figures["asked_while_away_tokens"] == 0
        and all(row["slowest_ms"] <= 1000 * WITHIN for row in figures["changes"])
        and all(max(row["last_served_ms"].values()) <= 1000 * WITHIN for row in figures["keys"])
        and all(
            cut["missed_until_then"]
            and cut["revoked_key_refused"]
            and cut["slowest_ms"] <= 1000 * HEALING_PERIOD
            for cut in figures["cuts"]
        )
    )


def slowest(figures):
    """The middle and the largest time of each kind of change, and of keys."""
    of_step = {}
    for row in figures["changes"]:
        of_step.setdefault(row["step"], []).append(row["slowest_ms"])
    if figures["keys"]:
        of_step["key revoked"] = [max(row["last_served_ms"].values()) for row in figures["keys"]]
    spread = {step: [parts.percentile(all_, 0.5), max(all_)] for step, all_ in of_step.items()}
    return {"slowest_ms_p50_and_max": spread}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts.add_arguments(parser)
    load.add_arguments(parser, words=300)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="the last by the command line")
    parser.add_argument("--keys", type=int, default=10, help="keys that are revoked")
    parser.add_argument("--cut", type=float, default=60, help="seconds without watch and bus")
    parser.add_argument("--pause", type=float, default=2, help="seconds between two changes")
    parts.main(parser, run)


if __name__ == "__main__":
    main()
