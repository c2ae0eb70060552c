"""The unmodified llama.cpp HTTP server out of the xllamacpp package.

usage: llama_server.py MODEL.gguf PORT [SLOTS] [CONTEXT_TOKENS]

Prints `listening` when it serves, and ends on SIGTERM or when its standard input closes, so
that it never outlives the test that started it.
"""

import os
import sys
import threading

import xllamacpp


def main():
    model, port = sys.argv[1], int(sys.argv[2])
    slots = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    context = int(sys.argv[4]) if len(sys.argv) > 4 else 4096
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"smollm2"} if isinstance(params.model_alias, (set, frozenset)) else "smollm2"
    params.hostnames = "127.0.0.1" if isinstance(params.hostnames, str) else ["127.0.0.1"]
    params.port = port
    params.n_parallel, params.n_ctx = slots, context
    # Several threads wait for each other at every step without sleeping: on a machine that is busy
    # with other things that takes a hundred times as long as one thread alone.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # Without the host-side cache a prompt is warm only while a slot holds it.
    params.cache_ram_mib = 0
    params.cache_prompt = True
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.use_jinja, params.ui, params.warmup = True, False, True
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
