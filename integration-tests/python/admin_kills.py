"""Kills telemetry again and again while its admin API is written to, and looks what is left.

    admin_kills.py [--kills N] [--writers N]

Writers add, change and remove backends, tenants, limits and keys as fast as they are answered,
and note what was acknowledged. Telemetry is killed in the midst of it, sometimes in the midst of
its start. Before some starts the index is deleted, overwritten, cut or an old one, or the journal
ends in the beginning of a record. After each start everything acknowledged must be there as it was
acknowledged, and nothing that was acknowledged as removed. Prints JSON; the exit code says whether
what must hold does.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import time

import parts
from admin import Api, Problem
from parts import Cluster

DAMAGE = ["none", "index deleted", "index overwritten", "none", "index cut", "index old", "journal torn"]
# Every so many starts it is killed before it answers.
EARLY = 8
LISTS = {
    "backends": ["url", "wish", "revision"],
    "tenants": ["debug_headers", "revision"],
    "keys": ["tenant", "revision"],
}
LIMITS = ["requests_per_minute", "revision"]
BACKENDS, TENANTS = 8, 4


class Writer:
    """One client; no other changes what it changes, so it knows what there should be."""

    def __init__(self, number, api, seed, urls):
        self.name, self.api, self.draw, self.urls = f"w{number}", api, random.Random(seed), urls
        # What was acknowledged last, by kind and id; None for a removal.
        self.known = {}
        # What may or may not have been done: asked for, and not answered.
        self.open = set()
        self.keys_open = 0
        self.acknowledged = self.refused = 0

    def there(self, kind):
        return [id for (k, id), state in self.known.items() if k == kind and state is not None]

    async def run(self):
        """Until telemetry is gone."""
        while True:
            kind = self.draw.choice(["backend", "backend", "tenant", "limits", "key"])
            try:
                await getattr(self, kind)()
            except (OSError, asyncio.IncompleteReadError):
                return
            except Problem:
                self.refused += 1
                self.open.clear()

    async def _do(self, entries, asking, fields=None):
        """Asks for a change of these entries; the first is what the answer shows."""
        self.open = set(entries)
        answer = await asking
        for entry in entries:
            self.known[entry] = None
        if fields:
            self.known[entries[0]] = {field: answer.get(field) for field in fields}
        self.open.clear()
        self.acknowledged += 1

    async def backend(self):
        number = self.draw.randrange(BACKENDS)
        id = f"{self.name}-{number}"
        path, entry, fields = f"/backends/{id}", [("backends", id)], LISTS["backends"]
        if self.known.get(entry[0]) is None:
            await self._do(entry, self.api.put(path, {"url": self.urls[number]}), fields)
        elif self.draw.random() < 0.3:
            await self._do(entry, self.api.delete(path))
        else:
            wish = self.draw.choice(["drain", "maintenance", "ready"])
            await self._do(entry, self.api.post(f"{path}/{wish}"), fields)

    async def tenant(self):
        id = f"{self.name}-{self.draw.randrange(TENANTS)}"
        entry = ("tenants", id)
        has_keys = any(state and state["tenant"] == id for (k, _), state in self.known.items() if k == "keys")
        if self.known.get(entry) is not None and not has_keys and self.draw.random() < 0.3:
            await self._do([entry, ("limits", id)], self.api.delete(f"/tenants/{id}"))
        else:
            spec = {"debug_headers": self.draw.random() < 0.5}
            await self._do([entry], self.api.put(f"/tenants/{id}", spec), LISTS["tenants"])

    async def limits(self):
        tenants = self.there("tenants")
        if not tenants:
            return await self.tenant()
        id = self.draw.choice(tenants)
        entry, path = ("limits", id), f"/tenants/{id}/limits"
        if self.known.get(entry) is not None and self.draw.random() < 0.3:
            await self._do([entry], self.api.delete(path))
        else:
            spec = {"requests_per_minute": self.draw.randrange(1, 1000)}
            await self._do([entry], self.api.put(path, spec), LIMITS)

    async def key(self):
        keys, tenants = self.there("keys"), self.there("tenants")
        if keys and (len(keys) > 6 or self.draw.random() < 0.5):
            id = self.draw.choice(keys)
            return await self._do([("keys", id)], self.api.delete(f"/keys/{id}"))
        if not tenants:
            return await self.tenant()
        # Only the answer has the id: one that is not answered may be there under any.
        self.keys_open = 1
        made = await self.api.post("/keys", {"tenant": self.draw.choice(tenants)})
        self.keys_open = 0
        self.known[("keys", made["id"])] = {field: made[field] for field in LISTS["keys"]}
        self.acknowledged += 1

    def compare(self, found):
        """What is not as it was acknowledged. What was not answered is taken as it is found."""
        wrong = []
        for entry, state in self.known.items():
            if entry not in self.open and found.get(entry) != state:
                wrong.append({"what": "/".join(entry), "acknowledged": state, "found": found.get(entry)})
        for entry in self.open:
            before, now = self.known.get(entry), found.get(entry)
            if before and now and now["revision"] < before["revision"]:
                wrong.append({"what": "/".join(entry), "acknowledged": before, "found": now})
        mine = {e: s for e, s in found.items() if self._is_mine(e, s)}
        unknown = [e for e in mine if e not in self.known and e not in self.open]
        if len(unknown) > self.keys_open or any(kind != "keys" for kind, _ in unknown):
            wrong += [{"what": "/".join(e), "acknowledged": None, "found": found[e]} for e in unknown]
        for entry in [*self.open, *unknown]:
            self.known[entry] = found.get(entry)
        self.open, self.keys_open = set(), 0
        return wrong

    def _is_mine(self, entry, state):
        owner = state["tenant"] if entry[0] == "keys" else entry[1]
        return owner.startswith(self.name + "-")


async def everything(api):
    """All there is, by kind and id."""
    found = {}
    for kind, fields in LISTS.items():
        for item in await api.all(f"/{kind}"):
            found[(kind, item["id"])] = {field: item.get(field) for field in fields}
            if limits := item.get("limits"):
                found[("limits", item["id"])] = {field: limits.get(field) for field in LIMITS}
    return found


class Store:
    """Telemetry's folder while telemetry is dead."""

    def __init__(self, folder, seed):
        self.folder, self.draw = folder, random.Random(seed)
        self.index, self.old = os.path.join(folder, "index"), os.path.join(folder, "..", "index.old")

    def _files(self):
        return [os.path.join(at, name) for at, _, names in os.walk(self.index) for name in names]

    def damage(self, how):
        """Does what a bad disk or a crash would; the acknowledged records stay whole."""
        if how == "index deleted":
            shutil.rmtree(self.index, ignore_errors=True)
        elif how == "index overwritten":
            for path in self._files():
                size = os.path.getsize(path)
                with open(path, "wb") as f:
                    f.write(self.draw.randbytes(size))
        elif how == "index cut":
            for path in self._files():
                os.truncate(path, os.path.getsize(path) // 2)
        elif how == "index old" and os.path.exists(self.old):
            shutil.rmtree(self.index, ignore_errors=True)
            shutil.copytree(self.old, self.index)
        elif how == "journal torn":
            journal = max(name for name in os.listdir(self.folder) if name.startswith("journal-"))
            with open(os.path.join(self.folder, journal), "ab") as f:
                f.write(b"WPr1" + self.draw.randbytes(self.draw.randrange(60)))

    def keep(self):
        """A copy of the index, to be put back later."""
        if os.path.isdir(self.index):
            shutil.rmtree(self.old, ignore_errors=True)
            shutil.copytree(self.index, self.old)


async def answers(part, api, limit=30):
    """Waits until the admin API does; the seconds it took."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        if part.process.poll() is not None:
            raise SystemExit(f"telemetry ended by itself: {part.said()[-2000:]}")
        try:
            await api.get("/status")
            return time.monotonic() - begin
        except OSError:
            await asyncio.sleep(0.005)
    raise SystemExit(f"the admin API does not answer: {part.said()[-2000:]}")


async def life(cluster, api, writers, draw, early):
    """One start of telemetry, up to its death: what was wrong, and how long it took to answer."""
    part = cluster.parts["telemetry"]
    part.start()
    if early:
        await asyncio.sleep(draw.uniform(0, 0.1))
        part.kill()
        return [], None
    seconds = await answers(part, api)
    found = await everything(api)
    wrong = [fault for writer in writers for fault in writer.compare(found)]
    writing = [asyncio.create_task(writer.run()) for writer in writers]
    await asyncio.sleep(draw.uniform(0.05, 0.6))
    part.kill()
    await asyncio.gather(*writing)
    return wrong, seconds


def closed_ports(count):
    """Ports where nobody listens, held as long as the sockets are."""
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    return held


async def run(args):
    cluster = Cluster(args.bin, 0, 0, args.nats, {})
    held = closed_ports(args.writers * BACKENDS)
    urls = [f"http://127.0.0.1:{s.getsockname()[1]}" for s in held]
    api, draw = Api(cluster.admin_api), random.Random(args.seed)
    writers = [
        Writer(n, api, f"{args.seed}/{n}", urls[n * BACKENDS : (n + 1) * BACKENDS])
        for n in range(args.writers)
    ]
    store = Store(os.path.join(cluster.folder, "store"), args.seed)
    part, wrong, starts, damages = cluster.parts["telemetry"], [], [], {}
    try:
        if nats := cluster.parts.get("nats"):
            nats.start()
            await nats.await_ready()
        for kill in range(args.kills):
            faults, seconds = await life(cluster, api, writers, draw, early=kill % EARLY == EARLY - 1)
            wrong += faults
            starts += [seconds] if seconds is not None else []
            if kill % 5 == 2:
                store.keep()
            how = DAMAGE[kill % len(DAMAGE)]
            store.damage(how)
            damages[how] = damages.get(how, 0) + 1
        part.start()
        starts.append(await answers(part, api))
        found = await everything(api)
        wrong += [fault for writer in writers for fault in writer.compare(found)]
        status = await api.get("/status")
        said = part.said()
    finally:
        cluster.stop()
    return report(args, writers, wrong, starts, damages, status, said)


def report(args, writers, wrong, starts, damages, status, said):
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    other = [line for line in said.splitlines() if line and not line.startswith("{")]
    panics = [line for line in said.splitlines() if "panic" in line]
    told = {}
    for line in lines:
        text = line.get("message", "")
        if text.startswith(("the index", "dropped a change")):
            told[text.split(":")[0]] = told.get(text.split(":")[0], 0) + 1
    acknowledged, refused = sum(w.acknowledged for w in writers), sum(w.refused for w in writers)
    there = sum(state is not None for w in writers for state in w.known.values())
    gone = sum(state is None for w in writers for state in w.known.values())
    holds = not wrong and not panics and not other and not refused and acknowledged > args.kills
    figures = {
        "kills": args.kills,
        "acknowledged": acknowledged,
        "refused": refused,
        "documents_there": there,
        "documents_removed": gone,
        "revision": status["store"]["revision"],
        "not_as_acknowledged": wrong[:20],
        "damage_before_a_start": damages,
        "panics": panics[:5],
        "unexpected_lines": other[:5],
        "told": told,
        "start_to_answer_s": {"p50": round(parts.percentile(starts, 0.5), 3), "max": round(max(starts), 3)},
        "load_average": os.getloadavg(),
    }
    return {"line": "admin-kills", "holds": holds, "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts.add_arguments(parser)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--writers", type=int, default=4)
    parts.main(parser, run)


if __name__ == "__main__":
    main()
