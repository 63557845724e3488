"""What clients do meanwhile: `baton bench serve` one run after the other, and a
few who ask the same things again and again and look at the answers.
"""

import concurrent.futures
import http.client
import json
import subprocess
import threading
import time

from processes import PATIENCE

# What the probes ask; each has one right answer.
QUESTIONS = [
    {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0},
    {"prompt": "The little dog saw a big red ball and", "max_tokens": 80,
     "temperature": 0.9, "seed": 7},
    {"prompt": "One day a girl named Lily went to the park. " * 8 + "She",
     "max_tokens": 40, "temperature": 0},
    {"prompt": "Tom was sad because", "max_tokens": 120, "temperature": 0.7,
     "top_p": 0.9, "seed": 11, "ignore_eos": True},
]


def complete(address, body, before_body=lambda: None):
    """(status, text) of a completion. The header is on its way before
    `before_body` is called."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    data = json.dumps(body).encode()
    try:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(data)))
        connection.endheaders()
        before_body()
        connection.send(data)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            return answer.status, text
        return 200, json.loads(text)["choices"][0]["text"]
    finally:
        connection.close()


def ask_at_once(address, count):
    """So many prompts, none of which begins as another does."""
    def ask(number):
        return complete(address, {
            "prompt": f"{number} " + "birds sat in a tree and sang. " * 20,
            "max_tokens": 2, "temperature": 0})

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for status, text in pool.map(ask, range(count)):
            if status != 200:
                raise AssertionError(f"many at once: {status} {text}")


class Bench:
    """Runs of `baton bench serve` on the client's host until it is stopped, one
    over HTTP, the next over gRPC."""

    def __init__(self, cluster, seconds=8, rate=3):
        self.cluster, self.seconds, self.rate = cluster, seconds, rate
        self.outcomes, self.errors, self.longest_gap_ms = {}, [], 0
        self.failed_to_run = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        turn = 0
        while not self.ended.is_set() and not self.failed_to_run:
            turn += 1
            balancer = self.cluster.balancer
            target = (["--url", f"http://{balancer.http}"] if turn % 2 else
                      ["--grpc", balancer.grpc])
            self._one(turn, [
                *target, "--rate", str(self.rate), "--duration",
                str(self.seconds), "--prompt-tokens", "8-200",
                "--output-tokens", "8-120", "--shared-prefix", "4",
                "--seed", str(turn)])

    def _one(self, turn, flags):
        report = self.cluster.folder / f"bench.{turn}.json"
        done = subprocess.run(
            self.cluster.client.inside(
                [f"{self.cluster.binaries}/baton", "bench", "serve", *flags,
                 "--timeout", str(PATIENCE), "--quiet", "--json", str(report)]),
            capture_output=True, text=True, check=False,
            timeout=self.seconds + 3 * PATIENCE)
        if done.returncode:
            self.failed_to_run = done.stderr or f"exit {done.returncode}"
            return
        summary = json.loads(report.read_text())
        summary = summary.get("summary", summary)
        for outcome, count in summary["outcomes"].items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.errors += summary["errors"]
        self.longest_gap_ms = max(self.longest_gap_ms,
                                  summary["longest_gap_ms"]["max"])

    def stop(self):
        """When the run that is under way is over."""
        self.ended.set()
        self.thread.join(self.seconds + 4 * PATIENCE)
        if self.thread.is_alive():
            raise AssertionError("baton bench does not end")
        if self.failed_to_run:
            raise AssertionError(f"baton bench: {self.failed_to_run}")


class Probes:
    """Threads that ask QUESTIONS through the load balancer, with a pause after
    each answer: the machine is for the cluster. Every other one is a client with
    a slow line, whose question comes a while after its header."""

    def __init__(self, cluster, pause=0.2, slowness=0.3):
        self.pause, self.slowness = pause, slowness
        self.address = cluster.balancer.http
        self.expected = [self._once(question) for question in QUESTIONS]
        self.right, self.wrong, self.errors = 0, [], []
        self.longest = 0.0
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=[i], daemon=True)
            for i in range(len(QUESTIONS))]
        for thread in self.threads:
            thread.start()

    def _once(self, question):
        status, text = complete(self.address, question)
        if status != 200:
            raise AssertionError(f"undisturbed: {status} {text}")
        return text

    def _run(self, index):
        while not self.ended.is_set():
            begin = time.monotonic()
            try:
                status, text = complete(
                    self.address, QUESTIONS[index],
                    lambda: index % 2 and self.ended.wait(self.slowness))
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, f"{type(error).__name__}: {error}"
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - begin)
                if status != 200:
                    self.errors.append(f"{status} {text}")
                elif text == self.expected[index]:
                    self.right += 1
                else:
                    self.wrong.append(
                        f"{text!r} instead of {self.expected[index]!r}")
            self.ended.wait(self.pause)

    def answered(self):
        with self.lock:
            return self.right

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(2 * PATIENCE)
