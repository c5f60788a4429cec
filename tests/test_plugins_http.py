"""Our schedulers behind vLLM's own server: hints over HTTP. Skipped where vLLM is not installed."""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-engines"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


@contextlib.contextmanager
def served_on(port):
    """vLLM's server for a small model, with one seat, as a user would start it with our scheduler."""
    from opt.plugins.small import write_model
    from opt.plugins.vllm.drive import offline

    offline()
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    flags = "--load-format dummy --skip-tokenizer-init --dtype float32 --enforce-eager --block-size 32 --max-num-seqs 1"
    flags += f" --num-gpu-blocks-override 300 --max-model-len 8192 --host 127.0.0.1 --port {port}"
    flags += " --scheduler-cls opt.plugins.vllm.MCSF"
    with tempfile.TemporaryDirectory() as folder:
        server_module, model = "vllm.entrypoints.openai.api_server", write_model(Path(folder))
        command = [sys.executable, "-m", server_module, "--model", model, *flags.split()]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield server
        finally:
            server.terminate()
            server.wait(60)


def ask(port, hint, tokens, **more):
    """Send a request with a hint and return the open connection."""
    body = {"prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True, "detokenize": False}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body |= {"temperature": 0, "vllm_xargs": {"kvopt_output": hint}, **more}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def got(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def until(happens, server):
    """Wait, as long as the server lives."""
    while True:
        assert server.poll() is None, server.stderr.read()[-2000:]
        with contextlib.suppress(OSError):
            if happens():
                return
        time.sleep(0.2)


def test_over_http_the_order_follows_the_hints():
    """Four requests wait for the one seat until the first one's client hangs up; all make 20 tokens, whatever they announce."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended = []

    def finish(name, connection):
        answer = json.loads(connection.getresponse().read())
        ended.append((name, len(answer["choices"][0]["token_ids"])))

    with served_on(port) as server:
        until(lambda: got(port, "/health") == "", server)
        first = ask(port, 1, 8000, stream=True)
        first.getresponse().read(1)
        threads = []
        for name, hint in (("last", 16), ("first", 4), ("third", 12), ("second", "8")):
            threads.append(threading.Thread(target=finish, args=(name, ask(port, hint, 20))))
            threads[-1].start()
        waits = re.compile(r"^vllm:num_requests_waiting\{.*\} 4\.0$", re.M)
        until(lambda: waits.search(got(port, "/metrics")), server)
        first.sock.close()
        for thread in threads:
            thread.join(300)
    assert ended == [("first", 20), ("second", 20), ("third", 20), ("last", 20)]
