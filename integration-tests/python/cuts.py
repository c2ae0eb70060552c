"""Cuts the sessions between edges and routers under load.

    cuts.py [--rate R] [--cuts N] [--away MILLISECONDS]

Two edges, two routers and telemetry run apart over gRPC and NATS; edges reach each router by a
port that this script holds. All sessions of one router after the other are broken there, and
nobody is let in for a moment. Meanwhile the leases that routers count are held against the
requests that engines run: a session that breaks must not make a router forget what it sent.
Prints JSON; the exit code says whether what must hold does.
"""

import argparse
import asyncio

import load
import parts
from apart import ON_THEIR_WAY, ORPHAN_SECONDS, Leases
from load import Stream
from parts import Cluster, Cut

ROUTERS = ["router-0", "router-1"]


async def run(args):
    cutters = {name: Cut() for name in ROUTERS}
    fronts = {name: cutter.port for name, cutter in cutters.items()}
    cluster = Cluster(args.bin, 2, len(ROUTERS), args.nats, load.engines(args), fronts=fronts)
    edges = [f"http://127.0.0.1:{port}" for name, port in cluster.admin.items() if "edge" in name]
    counted = ["warmpath_session_decided_alone_total", "warmpath_session_connects_total"]
    try:
        for name, cutter in cutters.items():
            await cutter.start(cluster.rpc[name])
        await cluster.start()
        stream = Stream(cluster, args)
        sending = asyncio.create_task(stream.run())
        await asyncio.sleep(args.pause)
        before = [await asyncio.to_thread(cluster.total, edges, name) for name in counted]
        leases = Leases(cluster)
        watching = asyncio.create_task(leases.watch())
        for n in range(args.cuts):
            cutter = cutters[ROUTERS[n % len(ROUTERS)]]
            cutter.cut("refused")
            await asyncio.sleep(args.away / 1e3)
            await cutter.heal()
            await asyncio.sleep(args.between)
        await asyncio.sleep(args.pause)
        leases.ending = True
        await watching
        after = [await asyncio.to_thread(cluster.total, edges, name) for name in counted]
        stream.ending = True
        await sending
    finally:
        await asyncio.to_thread(cluster.stop)
    short = max((running - booked for _, booked, running in leases.samples), default=0)
    differed = leases.longest_difference(ON_THEIR_WAY)
    outcomes = stream.outcomes()
    figures = {
        "requests": stream.sent,
        "rate": args.rate,
        "outcomes": outcomes,
        "cuts": args.cuts,
        "streams_opened_again": after[1] - before[1],
        "decided_alone": after[0] - before[0],
        "samples_of_leases": len(leases.samples),
        "requests_running_in_the_middle": parts.percentile([running for _, _, running in leases.samples], 0.5),
        "requests_more_than_leases_at_most": short,
        "leases_differed_from_requests_s": round(differed, 2),
    }
    holds = (
        set(outcomes) == {"complete"}
        and figures["streams_opened_again"] >= args.cuts
        and short <= ON_THEIR_WAY
        and differed <= ORPHAN_SECONDS
    )
    return {"line": "cuts", "holds": holds, "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts.add_arguments(parser)
    load.add_arguments(parser, words=1100)
    # Answers of half a second: fifty are open, and a session that forgets its own is seen.
    parser.set_defaults(documents=6, tokens=100)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--away", type=float, default=100, help="milliseconds that nobody is let in")
    parser.add_argument("--between", type=float, default=0.6, help="seconds between two cuts")
    parser.add_argument("--pause", type=float, default=3, help="seconds before and after")
    parts.main(parser, run)


if __name__ == "__main__":
    main()
