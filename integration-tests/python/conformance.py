"""Drives an engine directly and through Warmpath with the official OpenAI SDK and compares.

usage: conformance.py --direct URL --gateway URL --model NAME [--key KEY] [--engine vllm|llama-cpp|double] [--json FILE]

Each check runs the same call against both and compares what an application would see: values'
shapes, event order, the class of the exception and its status. Text is compared where the
engine is deterministic (--engine double). Exit code 1 if any check fails.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import traceback

import openai

TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}]
MESSAGES = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "Name a colour."},
]


def shape(value):
    """Keys and types of a JSON value, without its content."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


class Target:
    def __init__(self, base, key, model, deterministic):
        options = dict(base_url=base + "/v1", api_key=key, max_retries=0, timeout=120)
        self.base, self.key, self.model = base, key, model
        self.deterministic = deterministic
        self.client = openai.OpenAI(**options)
        self.async_client = lambda: openai.AsyncOpenAI(**options)

    def text(self, value):
        return value if self.deterministic else None


CHECKS = []


def check(*skip_for):
    def register(function):
        CHECKS.append((function.__name__, function, skip_for))
        return function
    return register


def chat(target, **options):
    settings = dict(model=target.model, messages=MESSAGES, max_tokens=8, temperature=0)
    return target.client.chat.completions.create(**{**settings, **options})


def summary(target, answer):
    data = answer.model_dump(exclude_none=True)
    usage = data.pop("usage", {})
    return {
        "shape": shape({k: v for k, v in data.items() if k not in ("timings",)}),
        "finish": [c.finish_reason for c in answer.choices],
        "prompt_tokens": usage.get("prompt_tokens"),
        "text": target.text([getattr(c, "text", None) or (c.message.content if hasattr(c, "message") else None)
                             for c in answer.choices]),
    }


def events(target, stream):
    """What a stream is made of: which fields each chunk has, with repeats folded."""
    kinds, text, usage = [], {}, []
    for chunk in stream:
        if not chunk.choices:
            kind = "usage" if chunk.usage else "empty"
            usage.append(chunk.usage.prompt_tokens if chunk.usage else None)
        else:
            choice = chunk.choices[0]
            delta = getattr(choice, "delta", None)
            if delta is None:
                kind = "text"
                text[choice.index] = text.get(choice.index, "") + (choice.text or "")
            else:
                kind = "tool" if delta.tool_calls else "content" if delta.content else "other"
                text[choice.index] = text.get(choice.index, "") + (delta.content or "")
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return {"kinds": kinds if target.deterministic else sorted(set(kinds)), "usage": usage,
            "choices": sorted(text), "text": target.text(text)}


@check()
def models_list(target):
    return [m.id for m in target.client.models.list().data]


@check()
def chat_plain(target):
    return summary(target, chat(target))


@check()
def chat_streamed(target):
    return events(target, chat(target, stream=True))


@check()
def chat_streamed_with_usage(target):
    return events(target, chat(target, stream=True, stream_options={"include_usage": True}))


@check()
def chat_streamed_with_usage_refused(target):
    return events(target, chat(target, stream=True, stream_options={"include_usage": False}))


@check()
def chat_two_choices(target):
    return summary(target, chat(target, n=2, temperature=0.8, seed=7))


@check()
def chat_two_choices_streamed(target):
    seen = events(target, chat(target, n=2, temperature=0.8, seed=7, stream=True))
    return {"choices": seen["choices"], "usage": seen["usage"]}


@check("double")
def chat_logprobs(target):
    answer = chat(target, logprobs=True, top_logprobs=2)
    return {"tokens": len(answer.choices[0].logprobs.content) > 0,
            "top": len(answer.choices[0].logprobs.content[0].top_logprobs)}


@check("double")
def chat_logprobs_streamed(target):
    chunks = list(chat(target, logprobs=True, top_logprobs=2, stream=True))
    return any(c.choices and c.choices[0].logprobs for c in chunks)


@check()
def chat_tools(target):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(target, messages=messages, tools=TOOLS, tool_choice="auto", max_tokens=24)
    return {"finish": [c.finish_reason for c in answer.choices], "prompt_tokens": answer.usage.prompt_tokens}


@check()
def chat_tool_history(target):
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
    ]
    return summary(target, chat(target, messages=messages, tools=TOOLS))["prompt_tokens"]


@check()
def chat_unicode(target):
    messages = [{"role": "user", "content": "Wiederhole: 安🚀é́"}]
    return summary(target, chat(target, messages=messages))


@check()
def chat_raw_response(target):
    raw = target.client.chat.completions.with_raw_response.create(
        model=target.model, messages=MESSAGES, max_tokens=4, temperature=0)
    return {"status": raw.status_code, "type": raw.headers["content-type"].split(";")[0],
            "choices": len(raw.parse().choices)}


@check()
def chat_async(target):
    async def call():
        async with target.async_client() as client:
            answer = await client.chat.completions.create(
                model=target.model, messages=MESSAGES, max_tokens=4, temperature=0)
            stream = await client.chat.completions.create(
                model=target.model, messages=MESSAGES, max_tokens=4, temperature=0, stream=True)
            chunks = [c async for c in stream]
        return {"choices": len(answer.choices), "chunks": len(chunks) > 0}
    return asyncio.run(call())


@check()
def completion_text(target):
    return summary(target, target.client.completions.create(
        model=target.model, prompt="The capital of France is", max_tokens=6, temperature=0))


@check()
def completion_streamed(target):
    return events(target, target.client.completions.create(
        model=target.model, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True))


@check()
def completion_token_ids(target):
    return summary(target, target.client.completions.create(
        model=target.model, prompt=list(range(5, 45)), max_tokens=4, temperature=0))


@check()
def completion_batch(target):
    answer = target.client.completions.create(
        model=target.model, prompt=["Hello", "Good day"], max_tokens=4, temperature=0)
    return {"choices": len(answer.choices), "prompt_tokens": answer.usage.prompt_tokens}


@check()
def curl_stream_ends_with_done(target):
    body = json.dumps({"model": target.model, "messages": MESSAGES, "max_tokens": 4, "stream": True})
    out = subprocess.run(
        ["curl", "-sS", "-N", "-w", "\n%{http_code} %{content_type}", target.base + "/v1/chat/completions",
         "-H", f"authorization: Bearer {target.key}", "-H", "content-type: application/json", "-d", body],
        capture_output=True, text=True, timeout=120, check=True).stdout
    head, _, tail = out.rpartition("\n")
    return {"done": head.rstrip().endswith("data: [DONE]"), "tail": tail.split(";")[0]}


def failure(call):
    try:
        call()
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "body": error.body}
    except openai.OpenAIError as error:
        return {"class": type(error).__name__}
    return "no error"


@check("llama-cpp")
def error_unknown_model(target):
    seen = failure(lambda: chat(target, model="no-such-model"))
    return {"class": seen["class"], "status": seen["status"]}


@check("llama-cpp")
def error_bad_temperature(target):
    return failure(lambda: chat(target, temperature=-3))


@check("llama-cpp")
def error_bad_max_tokens(target):
    return failure(lambda: chat(target, max_tokens=-5))


@check("double")
def error_bad_role(target):
    seen = failure(lambda: chat(target, messages=[{"role": 7, "content": "x"}]))
    return {"class": seen["class"], "status": seen["status"]} if isinstance(seen, dict) else seen


def gateway_only(target):
    """What the gateway answers by itself."""
    empty = failure(lambda: chat(target, messages=[]))
    assert (empty["class"], empty["status"]) == ("BadRequestError", 400), empty
    wrong_key = openai.OpenAI(base_url=target.base + "/v1", api_key="sk-wp-nobody-0000", max_retries=0)
    if target.key != "none":
        refused = failure(lambda: wrong_key.models.list())
        assert (refused["class"], refused["status"]) == ("AuthenticationError", 401), refused
        assert refused["body"]["code"] == "invalid_api_key", refused
    raw = target.client.chat.completions.with_raw_response.create(
        model=target.model, messages=MESSAGES, max_tokens=2, extra_headers={"x-request-id": "conformance-1"})
    assert raw.headers["x-request-id"] == "conformance-1", dict(raw.headers)
    return "ok"


def main():
    parser = argparse.ArgumentParser()
    for name in ("direct", "gateway", "model"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--engine", default="vllm", choices=["vllm", "llama-cpp", "double"])
    parser.add_argument("--json")
    args = parser.parse_args()
    deterministic = args.engine == "double"
    direct = Target(args.direct, "none", args.model, deterministic)
    gateway = Target(args.gateway, args.key, args.model, deterministic)

    results, failed = {}, 0
    for name, function, skip_for in CHECKS:
        if args.engine in skip_for:
            continue
        try:
            expected, seen = function(direct), function(gateway)
            results[name] = "pass" if expected == seen else {"direct": expected, "gateway": seen}
        except Exception:
            results[name] = {"error": traceback.format_exc(limit=3)}
    try:
        results["gateway_only"] = "pass" if gateway_only(gateway) == "ok" else "fail"
    except Exception:
        results["gateway_only"] = {"error": traceback.format_exc(limit=3)}

    for name, result in results.items():
        ok = result == "pass"
        failed += not ok
        print(f"{'pass' if ok else 'FAIL'}  {name}" + ("" if ok else "  " + json.dumps(result, default=str)))
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"passed": len(results) - failed, "failed": failed, "checks": results}, out, indent=1, default=str)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
