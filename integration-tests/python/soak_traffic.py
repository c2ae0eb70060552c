"""Mixed traffic whose every answer is known beforehand: each request is also asked of a double that
stands behind no gateway and says the same words."""

import asyncio
import json
import random
import time

import load
from answers import SOUND, constant, parse_event
from sdk_cases import cases

LIMIT = 60
BOUNDARY = "soak-boundary"
# What only one engine can answer, and what is no request with one answer.
LEFT_OUT = ("error-", "engine-", "response-goes-on", "realtime", "models")
PROMPTS = ("Name a colour.", "The capital of France is", "What is the weather in Paris?", "Hello")
# Of a hundred clients so many go away before they have all of their answer.
HANG_UPS = 8


class Broken(Exception):
    """The connection ended before the answer did."""


async def read_answer(reader):
    """Status, content type and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    if "chunked" in headers.get("transfer-encoding", ""):
        whole = bytearray()
        while size := int(await reader.readline(), 16):
            whole += (await reader.readexactly(size + 2))[:size]
        await reader.readline()
    else:
        whole = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(lines[0].split()[1]), headers.get("content-type", ""), bytes(whole)


def understood(status, kind, data):
    """An answer as what must be the same wherever it came from."""
    if not kind.startswith("text/event-stream"):
        return status, constant(json.loads(data)) if data else None
    events = [constant(parse_event(event)) for event in data.decode().split("\n\n") if event]
    return status, events


def is_interrupted(answer):
    """A stream that ended with an error event, in whichever dialect."""
    status, events = answer
    return status == 200 and isinstance(events, list) and any(
        isinstance(event, dict) and is_error(event) for event in events)


def is_error(event):
    if event.get("type") == "message-end":
        # Cohere's.
        return event.get("delta", {}).get("finish_reason") == "ERROR"
    return bool(event.get("error")) or event.get("type") == "error"


class Request:
    """A case with one of the documents in it, as bytes for any target."""

    def __init__(self, case, document):
        self.name, self.path, self.method = case.name, case.path, case.method
        self.kind = "application/json"
        if "file" in case.form:
            self.kind = f"multipart/form-data; boundary={BOUNDARY}"
            self.data = self._form(case.form)
        else:
            body = case.body | {"stream": True} if case.stream else case.body
            text = json.dumps(body)
            for prompt in PROMPTS:
                text = text.replace(json.dumps(prompt), json.dumps(document))
            self.data = text.encode()

    def _form(self, form):
        part = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name='
        return (f'{part}"model"\r\n\r\n{form["model"]}\r\n{part}"file"; filename="{form["file"]}"\r\n\r\n'.encode()
                + SOUND + f"\r\n--{BOUNDARY}--\r\n".encode())

    def bytes(self, key):
        return (
            f"{self.method} {self.path} HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer {key}\r\n"
            f"content-type: {self.kind}\r\ncontent-length: {len(self.data)}\r\n\r\n"
        ).encode() + self.data


class Client:
    """One kept connection after the other."""

    def __init__(self, port, key):
        self.port, self.key, self.open = port, key, None

    async def ask(self, request, leave_after=None):
        """The answer; None if the client went away after so many seconds."""
        kept = self.open is not None
        try:
            return await self._ask(request, leave_after)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.close()
            # A kept connection may have been closed meanwhile, before the request was read.
            if kept and isinstance(error, asyncio.IncompleteReadError) and not error.partial:
                return await self.ask(request, leave_after)
            raise Broken(f"{type(error).__name__}: {error}") from error

    async def _ask(self, request, leave_after):
        if self.open is None:
            self.open = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.open
        writer.write(request.bytes(self.key))
        try:
            answer = await asyncio.wait_for(read_answer(reader), leave_after or LIMIT)
        except TimeoutError:
            self.close()
            if leave_after is None:
                raise OSError("no answer in time") from None
            return None
        return understood(*answer)

    def close(self):
        if self.open:
            self.open[1].transport.abort()
            self.open = None


class Traffic:
    """Clients that ask one request after the other, and what became of each."""

    def __init__(self, args, port, oracle, key, unrest):
        self.draw, self.unrest, self.ending = random.Random(args.seed), unrest, False
        documents = [load.document(i, args.words) for i in range(args.documents)]
        wanted = [case for case in cases(args.model, True) if not case.name.startswith(LEFT_OUT)]
        # Some cases have no text to vary.
        self.requests = {(case.name, i): Request(case, text) for case in wanted for i, text in enumerate(documents)}
        self.names = list(self.requests)
        self.args, self.port, self.key = args, port, key
        self.oracle, self.asking, self.known = Client(oracle, "none"), asyncio.Lock(), {}
        self.counts, self.wrong, self.routes = {}, [], {}

    async def expected(self, name):
        async with self.asking:
            if name not in self.known:
                self.known[name] = await self.oracle.ask(self.requests[name])
            return self.known[name]

    async def run(self):
        await asyncio.gather(*(self._client(n) for n in range(self.args.clients)))
        self.oracle.close()

    async def _client(self, n):
        client = Client(self.port, self.key)
        await asyncio.sleep(n * self.args.pause / self.args.clients)
        while not self.ending:
            await self._one(client)
            await asyncio.sleep(self.args.pause * self.draw.uniform(0.5, 1.5))
        client.close()

    async def _one(self, client):
        name = self.draw.choice(self.names)
        expected, begin = await self.expected(name), time.monotonic()
        leave = self.draw.uniform(0.0005, 0.03) if self.draw.random() * 100 < HANG_UPS else None
        try:
            answer = await client.ask(self.requests[name], leave)
        except Broken as error:
            answer, outcome = str(error), "broken"
        else:
            outcome = self._outcome(answer, expected)
        if outcome in ("broken", "interrupted", "refused") and not self.unrest.covers(begin, time.monotonic()):
            outcome = "wrong"
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        self.routes[name[0]] = self.routes.get(name[0], 0) + 1
        if outcome == "wrong" and len(self.wrong) < 20:
            self.wrong.append({"case": name[0], "expected": str(expected)[:500], "found": str(answer)[:500]})

    def _outcome(self, answer, expected):
        if answer is None:
            return "hung up"
        if answer == expected:
            return "right"
        if is_interrupted(answer):
            return "interrupted"
        return "refused" if answer[0] in (502, 503, 529) else "wrong"
