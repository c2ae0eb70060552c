"""The SDKs and curl before an engine and before Warmpath in front of it: an application sees no
difference.

    sdks.py [--engine URL --model NAME] [--node FOLDER]

Every case is run against the engine directly and through Warmpath by every client that has the
call: openai for Python and Node, anthropic for Python, curl. Compared are the status, the
end-to-end headers, the shape of the JSON, the order of events, the class of the exception and,
where the engine is the double, the text. Without --engine a double is started. Prints JSON; the
exit code says whether what must hold does.
"""

import argparse
import json
import os
import re
import sys
import traceback

import parts
from admin import Api
from answers import constant, folded, shape
from parts import Cluster
from sdk_cases import SOCKET, Case, cases, chat, message
from sdk_clients import Anthropic, Curl, Node, OpenAi, Socket, set_faults

# Belong to one connection, or to whoever answers: not compared. What is left are the end-to-end
# headers.
HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}
OWN = {"date", "server", "content-length", "x-request-id", "request-id", "cache-control", "x-accel-buffering",
       "retry-after-ms", "x-should-retry", "openai-processing-ms"}
OWN_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-", "x-warmpath-")
BODY_LIMIT = 2_000_000


class Bed(Cluster):
    """One Warmpath before one engine, which is a double unless there is a URL."""

    def __init__(self, args):
        self.model = args.model or parts.MODEL
        beside = type("Beside", (), {"engines": {"engine": args.engine}}) if args.engine else None
        doubles = {} if args.engine else {"engine": ["--itl-ms", "1"]}
        super().__init__(args.bin, 0, 0, "", doubles, single=True, beside=beside)

    def _edge_section(self):
        return super()._edge_section() + f"body_limit_bytes = {BODY_LIMIT}\n"

    def _model(self):
        # A real engine's tokenizer is not known here: keys are over the text.
        return super()._model() if self.model == parts.MODEL else ""

    async def key(self, tenant, limits):
        api = Api(self.admin_api)
        await api.put(f"/tenants/{tenant}", {})
        await api.put(f"/tenants/{tenant}/limits", limits)
        return (await api.post("/keys", {"tenant": tenant}))["key"]


def end_to_end(headers):
    kept = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name, value in sorted(kept.items())
        if name not in HOP_BY_HOP | OWN and not name.startswith(OWN_PREFIXES)
    }


def unmarked(event):
    """Without what vLLM says in a stream's last event alone: where usage was not asked for, that is
    the event which the gateway asks for and takes out again."""
    return {name: value for name, value in event.items() if name != "system_fingerprint"}


def told(seen, case, double):
    """What of an answer must be the same."""
    found = {"status": seen.get("status"), "exception": seen.get("exception")}
    if case.same == "status":
        return found
    if case.same == "all":
        found["headers"] = end_to_end(seen.get("headers", {}))
    found["class"] = seen.get("class")
    failed = seen.get("exception") is not None or (seen.get("status") or 0) >= 400
    if case.stream or case.api == SOCKET:
        events = seen.get("events", [])
        found["events"] = [constant(event) for event in events] if double else folded([shape(unmarked(event)) for event in events])
    body = seen.get("body")
    found["shape"] = shape(body)
    # An engine's own words of what is wrong reach the client as they are.
    found["body"] = constant(body) if double or failed else None
    return found


class Run:
    """All clients before one address."""

    def __init__(self, base, key, node):
        self.base, self.curl = base, Curl(base, key)
        clients = [self.curl, OpenAi(base, key), Anthropic(base, key), Socket(base, key)]
        self.clients = {client.name: client for client in clients}
        if node:
            self.clients[Node.name] = Node(base, key, node)

    def body(self, case):
        """The case's body, going on from a response that is made first where it says so."""
        if case.after is None:
            return case.body
        first = self.curl.run(Case("first", "/v1/responses"), case.after)
        return case.body | {"previous_response_id": (first.get("body") or {}).get("id", "resp_none")}

    def prepare(self, wanted):
        """Node runs all its cases in one process."""
        if node := self.clients.get(Node.name):
            node.run_all([(case, self.body(case)) for case in wanted if Node.name in case.clients() and not case.fault])

    def run(self, case, name):
        client = self.clients[name]
        if isinstance(client, Node) and not case.fault:
            return client.done[case.name]
        return client.run(case, self.body(case))


def clients_of(case, known):
    return [name for name in case.clients() if name in known]


def compare(direct, gateway, wanted, double, engine):
    """Each case by each client: `pass`, or what differs."""
    results = {}
    # Once before, so that both find what the engine remembers.
    for case in wanted:
        if not case.fault:
            direct.run(case, case.clients()[0])
    for run in (direct, gateway):
        run.prepare(wanted)
    for case in wanted:
        for name in clients_of(case, direct.clients):
            seen = []
            try:
                for run in (direct, gateway):
                    if case.fault:
                        set_faults(engine, [case.fault])
                    seen.append(told(run.run(case, name), case, double))
                expected, found = seen
                differs = {k: {"direct": expected[k], "gateway": found[k]} for k in found if expected[k] != found[k]}
                results[f"{case.name} {name}"] = differs or "pass"
            except Exception:
                results[f"{case.name} {name}"] = {"error": traceback.format_exc(limit=4)}
            finally:
                if case.fault:
                    set_faults(engine, [])
    return results


def classes(base, keys, model, node):
    """What the gateway alone answers: the exception of each SDK, by its class."""
    huge = "x" * (BODY_LIMIT + 1)
    prompts = [{"role": "user", "content": huge}]
    asked = {
        "wrong-key": ("sk-wp-nobody-0000", {}, 401, "AuthenticationError", "AuthenticationError"),
        "too-large": (keys["team"], {"messages": prompts}, 413, "APIStatusError", "ContentTooLargeError"),
        "over-its-rate": (keys["slow"], {}, 429, "RateLimitError", "RateLimitError"),
    }
    results = {}
    for what, (key, more, status, openai_class, anthropic_class) in asked.items():
        run = Run(base, key, node)
        for case in (chat(model, what, **more), message(model, what, **more)):
            for name in clients_of(case, run.clients):
                if status == 429:
                    # Its one request of a minute, if it was not had.
                    run.curl.run(case, case.body)
                # The openai client for Node has one class for every status without one of its own.
                node_class = {"APIStatusError": "APIError"}.get(openai_class, openai_class)
                expected = {"openai-python": openai_class, "anthropic-python": anthropic_class,
                            "openai-node": node_class}.get(name)
                seen = run.clients[name].run(case, case.body)
                found = (seen.get("status"), (seen.get("exception") or {}).get("class"))
                good = found == (status, expected)
                results[f"{what} {case.api} {name}"] = "pass" if good else {"expected": [status, expected], "found": found}
    return results


def interrupted(run, engine, model):
    """A stream that breaks after its first content is an exception, never a short answer."""
    results = {}
    for case in (chat(model, "interrupted", stream=True), message(model, "interrupted", stream=True)):
        for name in clients_of(case, run.clients):
            case.fault = "close-after=2,times=1"
            set_faults(engine, [case.fault])
            seen = run.run(case, name)
            raised = (seen.get("exception") or {}).get("class")
            events = seen.get("events", [])
            good = raised in ("APIError", "APIStatusError") if name != "curl" else any("error" in e for e in events)
            results[f"interrupted {case.api} {name}"] = "pass" if good else {"raised": raised, "events": events[-2:]}
    set_faults(engine, [])
    return results


async def run(args):
    bed = Bed(args)
    try:
        await bed.start()
        limits = {"requests_per_minute": 1_000_000, "max_concurrency": 1000}
        keys = {"team": await bed.key("team", limits), "slow": await bed.key("slow", limits | {"requests_per_minute": 1})}
        engine, base = bed.engines["engine"], f"http://127.0.0.1:{bed.edges[0]}"
        double = not args.engine
        direct, gateway = Run(engine, "none", args.node), Run(base, keys["team"], args.node)
        wanted = cases(bed.model, double)
        if args.only:
            wanted = [case for case in wanted if re.search(args.only, case.name)]
        results = compare(direct, gateway, wanted, double, engine)
        results |= classes(base, keys, bed.model, args.node)
        if double:
            results |= interrupted(gateway, engine, bed.model)
    finally:
        bed.stop()
    failed = {name: result for name, result in results.items() if result != "pass"}
    for name, result in failed.items():
        print(f"FAIL {name}: {json.dumps(result, default=str)[:2000]}", file=sys.stderr)
    by_client = {}
    for name in results:
        client = name.rsplit(" ", 1)[1]
        by_client[client] = by_client.get(client, 0) + 1
    figures = {
        "engine": args.engine or "double",
        "cases": len(wanted),
        "checks": len(results),
        "checks_by_client": by_client,
        "passed": len(results) - len(failed),
        "failed": failed,
        "skipped": {} if args.node else {"openai-node": args.no_node},
    }
    return {"line": "sdks", "holds": not failed, "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parts.add_arguments(parser)
    parser.add_argument("--engine", help="base URL of a real engine, instead of a double")
    parser.add_argument("--model", help="its model's name")
    parser.add_argument("--only", help="cases whose name has this (a regular expression)")
    parser.add_argument("--node", help="folder with node_modules and sdks.mjs")
    parser.add_argument("--no-node", default="no folder was given", help="why there is none")
    parts.main(parser, run)


if __name__ == "__main__":
    main()
