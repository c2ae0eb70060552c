"""Answers as they are read and compared: what stays the same from one to the next."""

import json
import re

# Differ from one answer to the next.
VOLATILE = {"id", "created", "created_at", "completed_at", "request_id", "item_id", "system_fingerprint"}
# Of a made-up sound: the header of a WAV file and a tenth of a second of nothing.
SOUND = b"RIFF\x00\x00\x00\x00WAVEfmt " + bytes(3200)


def shape(value):
    """Keys and types, without content. Of a list every shape that its entries have."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        found = []
        for inner in map(shape, value):
            if inner not in found:
                found.append(inner)
        return found
    return type(value).__name__


def constant(value):
    """What does not differ from one answer to the next, numbers of cached tokens aside."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in VOLATILE and "cache" not in k}
        counts = "input_tokens" in kept and "output_tokens" in kept
        # Anthropic tells what was cached apart from the rest of the prompt.
        return {k: constant(v) for k, v in kept.items() if not (counts and k == "input_tokens")}
    if isinstance(value, list):
        return [constant(inner) for inner in value]
    if isinstance(value, str):
        # Ids in the middle of a text.
        return re.sub(r"(resp_|req-|chatcmpl-)[0-9a-zA-Z-]+", r"\1", value)
    return value


def folded(items):
    """Without repeats of what stands before."""
    return [item for n, item in enumerate(items) if n == 0 or item != items[n - 1]]


def parse_answer(answer):
    """What curl printed: heads, then the body."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, rest = rest.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    headers = {name.lower(): value for name, value in headers.items()}
    seen = {"status": int(lines[0].split()[1]), "headers": headers}
    if headers.get("content-type", "").startswith("text/event-stream"):
        seen["events"] = [parse_event(event) for event in rest.decode().split("\n\n") if event]
    else:
        try:
            seen["body"] = json.loads(rest) if rest else None
        except ValueError:
            seen["body"] = rest.decode(errors="replace")
    return seen


def parse_event(text):
    fields = dict(line.split(": ", 1) for line in text.split("\n") if not line.startswith(":"))
    data = fields.get("data", "")
    parsed = json.loads(data) if data.startswith("{") else {"data": data}
    return {"event": fields["event"], **parsed} if "event" in fields else parsed
