"""Repeats the fault matrix against one process, and watches what that costs it.

    faults.py [--minutes M] [--workers N]

Two engines break as each request asks them to: they refuse, end, reset, fall silent, send bad
JSON, single bytes or megabytes in one event. Clients read all of it, read slowly, or leave. Every
request must end as its fault says; after a third of the time memory and descriptors must not grow
any more, and in the end nothing is held.
Prints JSON; the exit code says whether what must hold does.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import socket
import struct
import time
import types

import parts
from parts import MODEL, Cluster

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n%s\r\n\r\n"
# A reader that is slow takes so many bytes, and then waits for so long.
SIP, PAUSE = 1 << 16, 0.002


def event(text):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(data, status=b"200 OK", headers=b""):
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"
    return head % (status, headers, len(data)) + data


TOKEN, DONE = event("é😀"), b"data: [DONE]\n\n"
STREAM = HEAD % (b"text/event-stream", b"transfer-encoding: chunked")
DOCUMENT = json.dumps({"choices": [{"index": 0, "message": {"content": "é😀"}}]}).encode()
BEGUN = HEAD % (b"application/json", b"content-length: %d" % len(DOCUMENT)) + DOCUMENT[:20]
GOOD = STREAM + chunk(TOKEN) + chunk(DONE) + b"0\r\n\r\n"
LONG = event("é😀" * 200_000)
# What an engine sends, with and without a stream, and how it ends: it keeps the connection, closes
# or resets it, or falls silent.
FAULTS = {
    "good": (GOOD, answer(DOCUMENT), "keep"),
    "refused": (b"", b"", "reset"),
    "500": (answer(b"{}", b"500 No"), answer(b"{}", b"500 No"), "keep"),
    "503": (answer(b"{}", b"503 No", b"retry-after: 0\r\n"),) * 2 + ("keep",),
    "nothing": (STREAM, BEGUN[:-20], "close"),
    "cut": (STREAM + chunk(TOKEN) + chunk(TOKEN[:-20]), BEGUN, "close"),
    "reset": (STREAM + chunk(TOKEN), BEGUN, "reset"),
    "stall": (STREAM + chunk(TOKEN), BEGUN, "silent"),
    "bad-json": (STREAM + chunk(TOKEN + b"data: {\n\n" + DONE) + b"0\r\n\r\n", answer(b"{"), "keep"),
    "split": (GOOD, answer(DOCUMENT), "split"),
    "giant": (STREAM + chunk(LONG) + chunk(DONE) + b"0\r\n\r\n", answer(LONG), "keep"),
}
# What a client sees of each in the end, with and without a stream; see `Seen.became`. Where an engine
# ends with the first bytes of its document, the connection may break before its head was written.
EXPECTED = {
    "good": ({"answer"}, {"answer"}),
    "refused": ({"502"}, {"502"}),
    "500": ({"500"}, {"500"}),
    "503": ({"503"}, {"503"}),
    "nothing": ({"502"}, {"502"}),
    "cut": ({"told"}, {"broken", "nothing"}),
    "reset": ({"told"}, {"broken", "nothing"}),
    "stall": ({"told"}, {"broken"}),
    "bad-json": ({"answer"}, {"answer"}),
    "split": ({"answer"}, {"answer"}),
    "giant": ({"answer"}, {"answer"}),
}
CLIENTS = ["reads", "reads", "slow", "leaves", "resets"]


class Engine:
    """Breaks as requests ask it to."""

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0])) if length else b""
                if not await self.reply(head, body, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def reply(self, head, body, reader, writer):
        """Whether the connection serves on."""
        if head.startswith(b"GET /v1/models"):
            listing = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]}
            writer.write(answer(json.dumps(listing).encode()))
        elif not head.startswith(b"POST /v1/chat/completions "):
            writer.write(answer(b"") if head.startswith(b"GET /health") else answer(b"{}", b"404 No"))
        else:
            asked = json.loads(body)
            *answers, end = FAULTS[asked["messages"][0]["content"].split(":")[0]]
            return await self.play(answers[not asked.get("stream")], end, reader, writer)
        await writer.drain()
        return True

    async def play(self, data, end, reader, writer):
        step = 1 if end == "split" else len(data) or 1
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        if end == "silent":
            await reader.read()
        elif end == "reset":
            await asyncio.sleep(0.01)
            reset(writer)
        return end in ("keep", "split")


def reset(writer):
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Seen:
    """What a client has of an answer: its head, its end, and how much."""

    def __init__(self):
        self.head, self.tail, self.length = b"", b"", 0

    def add(self, data):
        self.head = self.head if b"\r\n\r\n" in self.head else self.head + data
        self.tail, self.length = (self.tail + data)[-4000:], self.length + len(data)

    def became(self, stream):
        """`answer`: all of one. `told`: part of one, then an error event and the end. `broken`: part of
        one, and a connection that breaks. A status: of an answer that says no. `nothing`: not even a head."""
        head, found, _ = self.head.partition(b"\r\n\r\n")
        if not found:
            return "nothing"
        status = head[9:12].decode(errors="replace")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if b"content-length" in fields:
            whole = self.length - len(head) - 4 == int(fields[b"content-length"])
        else:
            whole = self.tail.endswith(b"\r\n0\r\n\r\n")
        if status != "200":
            return status if whole else f"{status} cut"
        if not whole:
            return "broken"
        if not stream:
            return "answer"
        if DONE not in self.tail:
            return "no end"
        return "told" if b'data: {"error"' in self.tail else "answer"


async def ask(port, fault, stream, client):
    """One request; what became of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": f"{fault}: {random.random()}"}
    body = json.dumps({"model": MODEL, "messages": [message], "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    seen = Seen()
    try:
        writer.write((head % len(body)).encode() + body)
        await writer.drain()
        if client in ("leaves", "resets"):
            await asyncio.sleep(random.random() * 0.02)
            return "left"
        while more := await asyncio.wait_for(reader.read(SIP), 30):
            seen.add(more)
            if client == "slow":
                await asyncio.sleep(PAUSE)
        return seen.became(stream)
    except ConnectionError:
        return seen.became(stream)
    except TimeoutError:
        return "silence"
    finally:
        if client == "resets":
            reset(writer)
        writer.close()


def unexpected(seen):
    """What ended otherwise than its fault says, and faults of which no client saw the end."""
    wrong = []
    for fault, expected in EXPECTED.items():
        for form, ends in zip(("stream", "whole"), expected):
            became = {end: n for (f, s, end), n in seen.items() if (f, s) == (fault, form) and end != "left"}
            wrong += [f"{fault} {form}: {end} {n} times" for end, n in became.items() if end not in ends]
            wrong += [] if became else [f"{fault} {form}: never seen"]
    return sorted(wrong)


def sample(pid):
    with open(f"/proc/{pid}/status") as f:
        rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
    return rss, len(os.listdir(f"/proc/{pid}/fd"))


async def run(args):
    random.seed(args.seed)
    engines = [await Engine().start() for _ in range(2)]
    urls = {f"e{n}": engine.url for n, engine in enumerate(engines)}
    cluster = Cluster(args.bin, 1, 0, None, {}, single=True, beside=types.SimpleNamespace(engines=urls))
    with open(os.path.join(cluster.folder, "single.toml"), "a") as f:
        f.write('[edge.timeouts]\nfirst_token = "10s"\nidle = "2s"\ntotal = "5s"\n')
    seen, samples, end = collections.Counter(), [], time.monotonic() + 60 * args.minutes
    try:
        await cluster.start()
        process = cluster.parts["single"].process.pid

        async def work():
            while time.monotonic() < end:
                fault, client = random.choice(list(FAULTS)), random.choice(CLIENTS)
                stream = random.random() < 0.5
                became = await ask(cluster.edges[0], fault, stream, client)
                seen[fault, "stream" if stream else "whole", became] += 1

        async def watch():
            while time.monotonic() < end:
                await asyncio.sleep(1)
                samples.append(sample(process))

        await asyncio.gather(watch(), *(work() for _ in range(args.workers)))
        # Silent engines are given up, idle connections closed.
        await asyncio.sleep(10)
        samples.append(sample(process))
        admin = [f"http://127.0.0.1:{cluster.admin['single']}"]
        held = ["warmpath_edge_requests_in_flight", "warmpath_router_in_flight_requests"]
        held = await asyncio.to_thread(cluster.total, admin, *held)
    finally:
        await asyncio.to_thread(cluster.stop)
    third = len(samples) // 3
    rss, files = [max(values) for values in zip(*samples[third : 2 * third])]
    last_rss, last_files = [max(values) for values in zip(*samples[2 * third :])]
    figures = {
        "requests": seen.total(),
        "outcomes": {" ".join(key): count for key, count in sorted(seen.items())},
        "unexpected": unexpected(seen),
        "rss_kib_second_third": rss,
        "rss_kib_last_third": last_rss,
        "rss_growth": round(last_rss / rss - 1, 4),
        "descriptors_second_third": files,
        "descriptors_last_third": last_files,
        "held_in_the_end": held,
    }
    holds = last_rss <= 1.03 * rss and last_files <= files + args.workers and held == 0
    holds = holds and not figures["unexpected"]
    return {"line": "faults", "holds": holds, "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts.add_arguments(parser)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--workers", type=int, default=32)
    parts.main(parser, run)


if __name__ == "__main__":
    main()
