"""The cases that every client runs: requests, errors of an engine, refusals of the gateway.

A case is a request as JSON. `api` is what an SDK calls it; cases without one are curl's alone.
"""

from dataclasses import dataclass, field

CURL, SOCKET = "curl", "websocket"

SYSTEM = "You answer in one short sentence."
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Name a colour."}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOLS = [{
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER},
}]
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
CALLED = ASKED + [
    {"role": "assistant", "content": None, "tool_calls": [{
        "id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
]


@dataclass
class Case:
    """One request. `same` says how much of an answer must agree: `all`, but for its headers where
    the gateway answers itself (`body`), or its `status` alone where it refuses in its own words."""

    name: str
    path: str
    body: dict | None = None
    api: str | None = None
    method: str = "POST"
    stream: bool = False
    same: str = "all"
    # Which fault a double is given for this case alone.
    fault: str | None = None
    # A response that is made first, and gone on from.
    after: dict | None = None
    form: dict = field(default_factory=dict)

    def clients(self):
        if self.api == SOCKET:
            return [SOCKET]
        if self.api is None:
            return [CURL]
        if self.api in ("messages", "count_tokens"):
            return [CURL, "anthropic-python"]
        return [CURL, "openai-python", "openai-node"]


def chat(model, name, stream=False, **more):
    body = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **more}
    return Case(name, "/v1/chat/completions", body, "chat", stream=stream)


def completion(model, name, stream=False, **more):
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0, **more}
    return Case(name, "/v1/completions", body, "completions", stream=stream)


def response(model, name, stream=False, after=False, **more):
    body = {"model": model, "input": "Name a colour.", "max_output_tokens": 8, "temperature": 0, **more}
    first = {"model": model, "input": "Name a fruit.", "max_output_tokens": 8, "temperature": 0}
    return Case(name, "/v1/responses", body, "responses", stream=stream, after=first if after else None)


def message(model, name, stream=False, **more):
    body = {"model": model, "max_tokens": 8, "temperature": 0, "system": SYSTEM,
            "messages": MESSAGES[1:], **more}
    return Case(name, "/v1/messages", body, "messages", stream=stream)


def post(name, path, body, api=None, **more):
    return Case(name, path, body, api, **more)


def generating(model):
    """Chats, completions, responses and messages, whole and streamed."""
    usage = {"stream_options": {"include_usage": True}}
    no_usage = {"stream_options": {"include_usage": False}}
    running = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    named = {"type": "function", "function": {"name": "get_weather"}}
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}]
    yield chat(model, "chat")
    yield chat(model, "chat-streamed", stream=True)
    yield chat(model, "chat-streamed-with-usage", stream=True, **usage)
    yield chat(model, "chat-streamed-usage-refused", stream=True, **no_usage)
    yield chat(model, "chat-streamed-running-usage", stream=True, **running)
    yield chat(model, "chat-two-choices", n=2, seed=7)
    yield chat(model, "chat-two-choices-streamed", n=2, seed=7, stream=True)
    yield chat(model, "chat-tools-auto", messages=ASKED, tools=TOOLS, tool_choice="auto")
    yield chat(model, "chat-tools-named", messages=ASKED, tools=TOOLS, tool_choice=named, max_tokens=24)
    yield chat(model, "chat-tools-named-streamed", messages=ASKED, tools=TOOLS, tool_choice=named,
               max_tokens=24, stream=True)
    yield chat(model, "chat-tools-history", messages=CALLED, tools=TOOLS)
    yield chat(model, "chat-unicode", messages=[{"role": "user", "content": "Wiederhole: 安🚀é́"}])
    yield completion(model, "completion")
    yield completion(model, "completion-streamed", stream=True)
    yield completion(model, "completion-streamed-with-usage", stream=True, **usage)
    yield completion(model, "completion-token-ids", prompt=list(range(5, 45)))
    yield completion(model, "completion-several", prompt=["Hello", "Good day"])
    yield response(model, "response")
    yield response(model, "response-streamed", stream=True)
    yield response(model, "response-instructions", instructions=SYSTEM)
    yield response(model, "response-goes-on", after=True)
    yield response(model, "response-goes-on-streamed", after=True, stream=True)
    yield message(model, "message")
    yield message(model, "message-streamed", stream=True)
    yield message(model, "message-blocks", messages=blocks)
    yield message(model, "message-tools", tools=[tool])
    yield message(model, "message-tools-streamed", tools=[tool], stream=True)


def others(model):
    """Everything else that engines answer."""
    turns = [[{"role": "user", "content": text}] for text in ("Hello", "Good day")]
    chatted = {"model": model, "messages": MESSAGES, "max_tokens": 8}
    ids = list(range(5, 45))
    generated = {"request_id": "made-up", "choices": [
        {"index": 0, "token_ids": ids, "finish_reason": "length"}]}
    yield post("count-tokens", "/v1/messages/count_tokens",
               {"model": model, "messages": MESSAGES[1:], "system": SYSTEM}, "count_tokens")
    yield post("tokenize", "/tokenize", {"model": model, "prompt": "Name a colour."})
    yield post("tokenize-chat", "/tokenize", {"model": model, "messages": MESSAGES})
    yield post("detokenize", "/detokenize", {"model": model, "tokens": ids})
    yield post("render-chat", "/v1/chat/completions/render", chatted)
    yield post("render-completion", "/v1/completions/render", {"model": model, "prompt": "Hello"})
    yield post("render-message", "/v1/messages/render",
               {"model": model, "max_tokens": 8, "messages": MESSAGES[1:]})
    yield post("render-response", "/v1/responses/render", {"model": model, "input": "Hello"})
    yield post("derender-chat", "/v1/chat/completions/derender",
               {"model": model, "generate_response": generated, "prompt_tokens": 7,
                "chat_request": chatted, "prompt_token_ids": ids})
    yield post("derender-completion", "/v1/completions/derender",
               {"model": model, "generate_responses": [generated], "prompt_tokens": [7]})
    generate = {"model": model, "token_ids": ids, "sampling_params": {"max_tokens": 6, "temperature": 0}}
    yield post("generate", "/inference/v1/generate", generate)
    yield post("generate-streamed", "/inference/v1/generate", generate, stream=True)
    yield post("batch-chat", "/v1/chat/completions/batch",
               {"model": model, "messages": turns, "max_tokens": 4, "temperature": 0})
    yield post("scoring", "/generative_scoring",
               {"model": model, "query": "Is it a fruit?", "items": ["apple", "stone"],
                "label_token_ids": [260, 261]})
    yield post("cohere-chat", "/cohere/v2/chat", chatted)
    yield post("cohere-chat-streamed", "/cohere/v2/chat", chatted, stream=True)
    yield post("embeddings", "/v1/embeddings", {"model": model, "input": ["one", "two"],
                                                "encoding_format": "float"}, "embeddings")
    yield post("embed", "/v2/embed", {"model": model, "texts": ["one"], "input_type": "search_query",
                                      "embedding_types": ["float"]})
    ranked = {"model": model, "query": "fruit", "documents": ["apple", "stone"]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        yield post("rerank" + path.replace("/", "-"), path, ranked)
    for path in ("/v1/score", "/score"):
        yield post("score" + path.replace("/", "-"), path,
                   {"model": model, "text_1": "fruit", "text_2": ["apple", "stone"]})
    yield post("classify", "/classify", {"model": model, "input": ["one", "two"]})
    yield post("pooling", "/pooling", {"model": model, "input": ["one", "two"]})
    yield post("transcription", "/v1/audio/transcriptions", None, "transcription",
               form={"model": model, "file": "sound.wav"})
    yield Case("realtime", "/v1/realtime?model=" + model, api=SOCKET, method="GET")
    yield Case("models", "/v1/models", api="models", method="GET", same="body")


def refusals(model):
    """Errors of the engine, word for word; and those that both give in words of their own."""
    yield chat(model, "error-temperature", temperature=-3)
    yield chat(model, "error-max-tokens", max_tokens=-5)
    yield chat(model, "error-too-long", max_tokens=10_000_000)
    yield chat(model, "error-type", messages="none")
    yield chat(model, "error-options-without-stream", stream_options={"include_usage": True})
    yield chat(model, "error-temperature-streamed", temperature=-3, stream=True)
    yield completion(model, "error-completion", prompt=None)
    yield message(model, "error-message", max_tokens=-5)
    yield post("error-tokenize", "/tokenize", {"model": model})
    for case in (chat("no-such-model", "error-model-of-chat"), message("no-such-model", "error-model-of-message"),
                 chat(model, "error-no-messages", messages=[])):
        case.same = "status"
        yield case
    gone = response(model, "error-no-such-response", previous_response_id="resp_none")
    gone.same = "status"
    yield gone
    yield Case("error-no-such-route", "/no/such/route", {}, same="status")
    yield Case("error-method", "/tokenize", method="GET", same="status")
    yield Case("error-no-json", "/v1/chat/completions", None, form={"": "{"}, same="status")


def failing(model):
    """What a double can be made to answer, and the gateway has no other engine for."""
    for status in (429, 500, 503):
        case = chat(model, f"engine-says-{status}")
        case.fault, case.same = f"status={status},retry-after=1", "status"
        yield case


def cases(model, double):
    found = [*generating(model), *others(model), *refusals(model)]
    return found + list(failing(model)) if double else found
