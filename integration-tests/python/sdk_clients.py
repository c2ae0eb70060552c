"""The clients of the conformance script. Each sends a case and tells what came of it as JSON:
status, head, body or events, and the class of the exception if the SDK raised one."""

import base64
import json
import os
import secrets
import socket
import struct
import subprocess
import tempfile
import urllib.request

import anthropic
import openai

from answers import SOUND, parse_answer

LIMIT = 120


def status_of(error):
    return {"class": type(error).__name__, "status": getattr(error, "status_code", None)}


def split(body, named):
    """Arguments of a call: what it has a name for, and the rest of the body as it is."""
    given = {name: body[name] for name in named if name in body}
    return given | {"extra_body": {name: value for name, value in body.items() if name not in given}}


class Python:
    """What both Python SDKs have in common."""

    def __init__(self, client, failure):
        self.client, self.failure = client, failure

    def run(self, case, body):
        seen = {}
        try:
            raw = self.call(case, body)
            seen |= {"status": raw.status_code, "headers": dict(raw.headers)}
            if case.stream:
                seen["events"] = [event.model_dump(mode="json", exclude_unset=True) for event in raw.parse()]
            else:
                seen["class"] = type(raw.parse()).__name__
                seen["body"] = json.loads(raw.http_response.content)
        except self.failure as error:
            seen["exception"] = status_of(error)
            if response := getattr(error, "response", None):
                seen |= {"status": response.status_code, "headers": dict(response.headers)}
                seen["body"] = getattr(error, "body", None)
        return seen


class OpenAi(Python):
    name = "openai-python"

    def __init__(self, base, key):
        options = {"api_key": key, "max_retries": 0, "timeout": LIMIT}
        super().__init__(openai.OpenAI(base_url=base + "/v1", **options), openai.OpenAIError)

    def call(self, case, body):
        client = self.client
        if case.api == "models":
            return client.models.with_raw_response.list()
        if case.api == "transcription":
            sound = (case.form["file"], SOUND)
            return client.audio.transcriptions.with_raw_response.create(model=case.form["model"], file=sound)
        make = {
            "chat": client.chat.completions,
            "completions": client.completions,
            "responses": client.responses,
            "embeddings": client.embeddings,
        }[case.api].with_raw_response
        if case.stream:
            body = body | {"stream": True}
        return make.create(**split(body, ("model", "messages", "prompt", "input", "stream")))


class Anthropic(Python):
    name = "anthropic-python"

    def __init__(self, base, key):
        options = {"api_key": key, "max_retries": 0, "timeout": LIMIT}
        super().__init__(anthropic.Anthropic(base_url=base, **options), anthropic.AnthropicError)

    def call(self, case, body):
        messages = self.client.messages.with_raw_response
        if case.api == "count_tokens":
            return messages.count_tokens(**split(body, ("model", "messages")))
        if case.stream:
            body = body | {"stream": True}
        return messages.create(**split(body, ("model", "messages", "max_tokens", "stream")))


class Node:
    """openai for Node: one process for all cases of a target."""

    name = "openai-node"

    def __init__(self, base, key, folder):
        self.base, self.key, self.folder, self.done = base, key, folder, {}

    def run_all(self, asked):
        """`asked`: case and body of each."""
        cases = [
            {"name": case.name, "api": case.api, "stream": case.stream, "body": body, "form": case.form}
            for case, body in asked
        ]
        given = {"base": self.base + "/v1", "key": self.key, "cases": cases}
        script = os.path.join(self.folder, "sdks.mjs")
        out = subprocess.run(
            ["node", script], input=json.dumps(given), capture_output=True, text=True, timeout=10 * LIMIT)
        if out.returncode:
            raise SystemExit(f"node: {out.stderr[-2000:]}")
        self.done |= json.loads(out.stdout)

    def run(self, case, body):
        self.run_all([(case, body)])
        return self.done[case.name]


class Curl:
    name = "curl"

    def __init__(self, base, key):
        self.base, self.key = base, key

    def run(self, case, body):
        command = ["curl", "-sS", "-N", "-D", "-", "-X", case.method, "--max-time", str(LIMIT),
                   "-H", f"authorization: Bearer {self.key}", self.base + case.path]
        with tempfile.TemporaryDirectory(prefix="warmpath-curl-") as folder:
            if "file" in case.form:
                sound = os.path.join(folder, case.form["file"])
                with open(sound, "wb") as f:
                    f.write(SOUND)
                command += ["-F", f"model={case.form['model']}", "-F", f"file=@{sound}"]
            elif case.method == "POST":
                # By a file: a command line has its limits.
                data = os.path.join(folder, "body")
                with open(data, "w") as f:
                    f.write(case.form.get("") or json.dumps(body | {"stream": True} if case.stream else body))
                command += ["-H", "content-type: application/json", "--data-binary", f"@{data}"]
            out = subprocess.run(command, capture_output=True, timeout=LIMIT + 10)
        if out.returncode:
            return {"exception": {"class": f"curl exit code {out.returncode}", "status": None}}
        return parse_answer(out.stdout)


class Socket:
    """A realtime session over a WebSocket: some sound, and what it is heard as."""

    name = "websocket"

    def __init__(self, base, key):
        host, port = base.removeprefix("http://").split(":")
        self.address, self.key = (host, int(port)), key

    def run(self, case, _):
        with socket.create_connection(self.address, timeout=LIMIT) as stream:
            lines = [f"GET {case.path} HTTP/1.1", "host: warmpath", "connection: Upgrade", "upgrade: websocket",
                     "sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
                     f"authorization: Bearer {self.key}", "", ""]
            stream.sendall("\r\n".join(lines).encode())
            read = stream.makefile("rb")
            status = int(read.readline().split()[1])
            headers = {}
            while (line := read.readline().decode().strip()):
                name, value = line.split(": ", 1)
                headers[name.lower()] = value
            seen = {"status": status, "headers": headers}
            if status != 101:
                return seen
            accepted = headers.get("sec-websocket-accept")
            seen["events"] = [{"accepted": accepted}, self._hear(read)]
            sound = base64.b64encode(SOUND).decode()
            model = case.path.rsplit("=", 1)[1]
            for event in ({"type": "session.update", "model": model},
                          {"type": "input_audio_buffer.commit"},
                          {"type": "input_audio_buffer.append", "audio": sound},
                          {"type": "input_audio_buffer.commit", "final": True}):
                self._say(stream, json.dumps(event).encode())
            while seen["events"][-1]["type"] not in ("transcription.done", "error"):
                seen["events"].append(self._hear(read))
        return seen

    def _say(self, stream, payload):
        mask = secrets.token_bytes(4)
        length = struct.pack(">BBH", 0x81, 0xFE, len(payload)) if len(payload) > 125 else bytes([0x81, 0x80 | len(payload)])
        stream.sendall(length + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload)))

    def _hear(self, read):
        _, short = read.read(2)
        length = struct.unpack(">H", read.read(2))[0] if short == 126 else short
        return json.loads(read.read(length))


def set_faults(engine, faults):
    data = json.dumps({"faults": faults}).encode()
    request = urllib.request.Request(engine + "/fault", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass
