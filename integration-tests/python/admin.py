"""The admin API and other small pages over HTTP, without waiting for anybody else."""

import asyncio
import json

from parts import ADMIN_TOKEN, series_sum


class Problem(Exception):
    """An answer that is not a success."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


async def call(port, method, path, headers=(), data=b""):
    """Status, head and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = [f"{method} {path} HTTP/1.1", "host: warmpath", "connection: close", *headers]
        lines.append(f"content-length: {len(data)}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        answer = await asyncio.wait_for(reader.read(-1), timeout=10)
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError("there was no answer")
    head = head.decode().lower()
    if "transfer-encoding: chunked" in head:
        rest = unchunked(rest)
    return int(head[9:12]), head, rest


def unchunked(rest):
    whole = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
    return whole


async def fetch(port, path, key=None, text=False):
    """A page as JSON, or as text."""
    headers = [f"authorization: Bearer {key}"] if key else []
    status, _, rest = await call(port, "GET", path, headers)
    if status != 200:
        raise Problem(status, rest.decode(errors="replace"))
    return rest.decode() if text else json.loads(rest)


class Api:
    """Telemetry's admin API. Answers are JSON; what is no success is a `Problem`."""

    def __init__(self, port):
        self.port = port

    async def _ask(self, method, path, document=None, condition=()):
        headers = [f"authorization: Bearer {ADMIN_TOKEN}", *condition]
        data = b""
        if document is not None:
            headers.append("content-type: application/json")
            data = json.dumps(document).encode()
        status, _, rest = await call(self.port, method, f"/admin/v1{path}", headers, data)
        if status >= 300:
            raise Problem(status, rest.decode(errors="replace"))
        return json.loads(rest) if rest else None

    async def get(self, path):
        return await self._ask("GET", path)

    async def post(self, path, document=None):
        return await self._ask("POST", path, document)

    async def put(self, path, document):
        """Adds it, or replaces what is there."""
        try:
            return await self._ask("PUT", path, document, ["if-none-match: *"])
        except Problem as problem:
            if problem.status != 412:
                raise
            return await self._ask("PUT", path, document, ["if-match: *"])

    async def delete(self, path):
        return await self._ask("DELETE", path)

    async def all(self, path):
        """Every entry of a list, page by page."""
        found, after = [], ""
        while True:
            page = await self.get(f"{path}?limit=1000{after}")
            found += page["items"]
            if not page.get("next"):
                return found
            after = f"&after={page['next']}"


async def decided_alone(cluster):
    """Requests that edges placed without a router so far, as its answer came too late or not at all."""
    edges = [port for name, port in cluster.admin.items() if name.startswith("edge")]
    pages = [await fetch(port, "/metrics", text=True) for port in edges]
    return sum(series_sum(page, "warmpath_session_decided_alone_total") for page in pages)
