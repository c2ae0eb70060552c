"""Streams against edges, at a steady rate or one after the other."""

import asyncio
import json
import random
import time

from parts import MODEL

WORDS = (
    "river stone light window garden paper winter market bridge letter music kitchen forest "
    "train evening harbour"
).split()


def document(seed, words):
    draw = random.Random(seed)
    return f"Document {seed}. " + " ".join(draw.choice(WORDS) for _ in range(words))


def body(text, tokens):
    message = {"role": "user", "content": text}
    asked = {"model": MODEL, "messages": [message], "max_tokens": tokens, "stream": True}
    return json.dumps(asked).encode()


class Client:
    """Sends to one edge after the other; goes to the next on a refused connection."""

    def __init__(self, ports, key=None):
        self.ports, self.turn = ports, 0
        self.authorization = f"authorization: Bearer {key}\r\n" if key else ""

    async def ask(self, data):
        """`complete`, `interrupted` (an error event), or what else came of it."""
        # Others take their turns while this one waits.
        self.turn += 1
        turn = self.turn
        for k in range(len(self.ports)):
            port = self.ports[(turn + k) % len(self.ports)]
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

    async def _one(self, reader, writer, data):
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
            f"{self.authorization}"
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


class Stream:
    """Requests at a steady rate, with what became of each and when."""

    def __init__(self, cluster, args, key=None):
        self.client, self.args = Client(cluster.edges, key), args
        self.texts = [document(i, args.words) for i in range(args.documents)]
        self.draw, self.done, self.open, self.sent = random.Random(args.seed), [], set(), 0
        self.ending = False

    async def run(self, seconds=float("inf")):
        """For so long, or until `ending` is set; then until all are answered."""
        begin = time.monotonic()
        while not self.ending and time.monotonic() - begin < seconds:
            due = begin + self.sent / self.args.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.sent += 1
            text = self.texts[self.draw.randrange(len(self.texts))]
            data = body(f"{text}\n\nQuestion {self.sent}?", self.args.tokens)
            task = asyncio.create_task(self._one(data))
            self.open.add(task)
            task.add_done_callback(self.open.discard)
        await asyncio.gather(*self.open)

    async def _one(self, data):
        begin = time.monotonic()
        port, outcome = await self.client.ask(data)
        self.done.append((begin, time.monotonic(), port, outcome))

    def between(self, begin, end):
        """How many requests that were open in that time came to what."""
        counts = {}
        for started, ended, _, outcome in self.done:
            if ended >= begin and started <= end:
                counts[outcome] = counts.get(outcome, 0) + 1
        return counts

    def outcomes(self):
        return self.between(float("-inf"), float("inf"))


def add_arguments(parser, words):
    """What a stream is made of."""
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--words", type=int, default=words, help="words of a document")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--blocks", type=int, default=600, help="blocks of an engine's cache")
    parser.add_argument("--itl-ms", type=float, default=5, help="between two tokens of an answer")


def engines(args, count=3):
    """The doubles of a cluster, by name."""
    options = ["--itl-ms", str(args.itl_ms), "--blocks", str(args.blocks)]
    return {f"engine-{i}": list(options) for i in range(count)}
