"""What three processes cost beside one: CPU time and latency, same load, same run.

    cost.py [--rate R] [--seconds S] [--rounds N]

Engines, a single process, and an edge, a router and telemetry apart over gRPC and NATS run at the
same time. Each round sends the same load at a fixed rate to an engine directly, to the one process
and to the processes apart, one after the other, in another order each round. CPU time is the
kernel's count over the gateway's processes; NATS is shown beside. Times go from the moment a
request is written to its first content. Prints JSON; the exit code says whether what must hold does.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time

import load
import parts
from admin import Api
from parts import Cluster

# The CPU time of three may be so many times that of one, and their p99 so much higher.
CPU_TIMES, P99_MS = 2.0, 1.0
TARGETS = ["direct", "one", "apart"]
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
APART = ["edge-0", "router-0", "telemetry"]
FIRST_CONTENT, DONE, END = b'"content":"', b"data: [DONE]", b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One request at a time, over one connection that is kept."""

    def connection_made(self, transport):
        self.transport, self.answer = transport, None

    def ask(self, request):
        self.seen, self.first, self.begin = bytearray(), None, time.perf_counter()
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data):
        self.seen += data
        if self.first is None and FIRST_CONTENT in self.seen:
            self.first = time.perf_counter()
        if self.seen.endswith(END):
            good = self.seen.startswith(b"HTTP/1.1 200") and DONE in self.seen and self.first
            self._finish((self.first - self.begin, time.perf_counter() - self.begin) if good else None)

    def connection_lost(self, _):
        self._finish(None)

    def _finish(self, sample):
        if self.answer and not self.answer.done():
            self.answer.set_result(sample)


class Load:
    """Requests at a fixed rate, whatever comes back, over as many connections as that takes."""

    def __init__(self, port, key):
        self.port, self.idle = port, []
        self.head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
            f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: "
        )

    async def run(self, bodies, rate):
        """Seconds to first content and to the end of each; None where it failed."""
        begin, asked = time.perf_counter(), []
        for n, data in enumerate(bodies):
            await asyncio.sleep(begin + n / rate - time.perf_counter())
            asked.append(asyncio.ensure_future(self._one(data)))
        return await asyncio.gather(*asked)

    async def _one(self, data):
        connection = self.idle.pop() if self.idle else None
        if connection is None or connection.transport.is_closing():
            make = asyncio.get_running_loop().create_connection
            _, connection = await make(Connection, "127.0.0.1", self.port)
        sample = await connection.ask(self.head.encode() + b"%d\r\n\r\n" % len(data) + data)
        self.idle.append(connection)
        return sample

    def close(self):
        for connection in self.idle:
            connection.transport.close()
        self.idle.clear()


class Bed:
    """The two gateways over the same engines, and the way to each target."""

    def __init__(self, args):
        doubles = {f"engine-{i}": ["--static"] for i in range(3)}
        self.one = Cluster(args.bin, 0, 0, "", doubles, single=True)
        self.apart = Cluster(args.bin, 1, 1, args.nats, {}, beside=self.one)

    async def start(self):
        for cluster in (self.one, self.apart):
            await cluster.start()
        engine = int(self.one.engines["engine-0"].rsplit(":", 1)[1])
        self.ports = {"direct": engine, "one": self.one.edges[0], "apart": self.apart.edges[0]}
        self.keys = {"direct": "none"}
        for name, cluster in [("one", self.one), ("apart", self.apart)]:
            api = Api(cluster.admin_api)
            await api.put("/tenants/load", {})
            limits = {"requests_per_minute": 10_000_000, "max_concurrency": 10_000}
            await api.put("/tenants/load/limits", limits)
            self.keys[name] = (await api.post("/keys", {"tenant": "load"}))["key"]
        await asyncio.sleep(2)

    def stop(self):
        self.apart.stop()
        self.one.stop()

    def cpu(self):
        """Seconds of each process, by what it is."""
        found = {name: self.apart.parts[name].cpu_seconds() for name in APART}
        if nats := self.apart.parts.get("nats"):
            found["nats"] = nats.cpu_seconds()
        return found | {"one": self.one.parts["single"].cpu_seconds()}


def bodies(args, seed):
    """Known documents with a new question each."""
    draw = random.Random(seed)
    texts = [load.document(i, args.words) for i in range(args.documents)]
    count = int(args.rate * args.seconds)
    return [
        load.body(f"{draw.choice(texts)}\n\nQuestion {seed} {n}?", 16) for n in range(count)
    ]


async def measure(bed, args, target, turn):
    """One target in one round: times, and CPU time per request of what was in use."""
    sending = Load(bed.ports[target], bed.keys[target])
    await sending.run(bodies(args, f"warm {turn}")[: int(args.rate)], args.rate)
    asked = bodies(args, f"{turn}")
    before = bed.cpu()
    samples = await sending.run(asked, args.rate)
    used = {name: 1e6 * (now - before[name]) / len(asked) for name, now in bed.cpu().items()}
    sending.close()
    first = [1e3 * sample[0] for sample in samples if sample]
    whole = [1e3 * sample[1] for sample in samples if sample]
    row = {
        "target": target,
        "round": turn,
        "failed": samples.count(None),
        "ttft_ms": {q: parts.percentile(first, share) for q, share in QUANTILES.items()},
        "total_ms": {q: parts.percentile(whole, share) for q, share in QUANTILES.items()},
        "load_average": os.getloadavg()[0],
    }
    if target == "one":
        row["cpu_us_per_request"] = {"one": used["one"]}
    elif target == "apart":
        row["cpu_us_per_request"] = {name: used[name] for name in used if name != "one"}
        row["cpu_us_per_request"]["apart"] = sum(used[name] for name in APART)
    return rounded(row)


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return round(value, 3) if isinstance(value, float) else value


async def idle(bed, seconds):
    """Share of a core that each process takes without requests."""
    before = bed.cpu()
    await asyncio.sleep(seconds)
    return rounded({name: (now - before[name]) / seconds for name, now in bed.cpu().items()})


async def run(args):
    bed, rows = Bed(args), []
    try:
        await bed.start()
        resting = await idle(bed, 5)
        for turn in range(args.rounds):
            shift = turn % len(TARGETS)
            for target in TARGETS[shift:] + TARGETS[:shift]:
                rows.append(await measure(bed, args, target, turn))
                print(json.dumps(rows[-1]), file=sys.stderr)
    finally:
        bed.stop()
    found = summary(rows, args.rounds)
    holds = (
        found["cpu_ratio"]["median"] <= CPU_TIMES
        and found["ttft_p99_apart_less_one_ms"]["median"] <= P99_MS
        and found["failed"] == 0
    )
    figures = {"rate": args.rate, "seconds": args.seconds, "summary": found}
    return {"line": "cost", "holds": holds, "figures": figures | {"idle_cores": resting, "rounds": rows}}


def summary(rows, rounds):
    by = {(row["target"], row["round"]): row for row in rows}

    def spread(of_round):
        values = sorted(of_round(turn) for turn in range(rounds))
        middle = values[len(values) // 2]
        return rounded({"median": middle, "min": values[0], "max": values[-1]})

    def cpu(target, name=None):
        return lambda turn: by[target, turn]["cpu_us_per_request"][name or target]

    def less(a, b, kind, q):
        return lambda turn: by[a, turn][kind][q] - by[b, turn][kind][q]

    found = {
        "cpu_us_one": spread(cpu("one")),
        "cpu_us_apart": spread(cpu("apart")),
        "cpu_ratio": spread(lambda turn: cpu("apart")(turn) / cpu("one")(turn)),
    }
    for name in by["apart", 0]["cpu_us_per_request"]:
        if name != "apart":
            found[f"cpu_us_{name}"] = spread(cpu("apart", name))
    for kind in ("ttft", "total"):
        for q in QUANTILES:
            for a, b in [("one", "direct"), ("apart", "direct"), ("apart", "one")]:
                found[f"{kind}_{q}_{a}_less_{b}_ms"] = spread(less(a, b, f"{kind}_ms", q))
    found["failed"] = sum(row["failed"] for row in rows)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts.add_arguments(parser)
    parser.add_argument("--rate", type=float, default=500, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--words", type=int, default=300, help="words of a document")
    parts.main(parser, run)


if __name__ == "__main__":
    main()
