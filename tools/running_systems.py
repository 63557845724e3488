"""Programs that are started, asked and stopped to be measured: for the tools
beside it. Standard library only.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_SECONDS = 120
STOP_SECONDS = 20


class Failure(Exception):
    """A program did not do what it should."""


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode("utf-8", "replace")


def wait_for(what, condition):
    """Asks again until it is true; a server that is not there yet is not."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if condition():
                return
        time.sleep(0.05)
    raise Failure(f"{what}: not within {START_SECONDS} s")


class Programs:
    """Programs that are stopped, the last one first, when all is over: also
    when this one is asked to end."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.running = []
        self.on_terminate = None

    def __enter__(self):
        self.on_terminate = signal.signal(
            signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGTERM, self.on_terminate)
        for name, process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                print(f"{name} had to be killed", file=sys.stderr)

    def start(self, name, command, cpus, pass_fds=(), environment=None):
        log = self.directory / f"{name}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                pass_fds=pass_fds, cwd=self.directory,
                env={**os.environ, **(environment or {})},
                preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.running.append((name, process))
        return process

    def start_baton(self, program, name, flags, cpus, environment=None):
        """What it says when it is ready: its addresses."""
        read_end, write_end = os.pipe()
        try:
            process = self.start(
                name, [str(program), "--name", name, "--ready-fd",
                       str(write_end), *flags], cpus, [write_end], environment)
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        line = b""

        def is_ready():
            nonlocal line
            if process.poll() is not None:
                raise Failure(f"{name} ended: see {self.directory}/{name}.log")
            with contextlib.suppress(BlockingIOError):
                line += os.read(read_end, 65536)
            return line.endswith(b"\n")

        try:
            wait_for(name, is_ready)
        finally:
            os.close(read_end)
        return json.loads(line)


def metric(text, name, label=""):
    """The sum of a metric over its labels that have `label`."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")) and label in line:
            total += float(line.split()[-1])
    return total


class Baton:
    """A router, and workers: (kind, CPUs, further flags) each, and after these,
    if need be, a dictionary that is added to its environment.

    A kind is prefill, decode or dual.
    """

    def __init__(self, name, args, workers, router_flags=()):
        self.name, self.args, self.workers = name, args, workers
        self.router_flags = list(router_flags)
        self.addresses = {}  # of each program that is ready, by name

    @contextlib.contextmanager
    def running(self, programs):
        """Gives the router's addresses."""
        args = self.args
        router_flags = ["--model", args.model, "--listen", "127.0.0.1:0",
                        "--http", "127.0.0.1:0", *self.router_flags]
        numbers = {"prefill": 0, "decode": 0, "dual": 0}
        for kind, cpus, flags, *environment in self.workers:
            program = "worker" if kind == "dual" else kind
            addresses = programs.start_baton(
                args.bin / f"baton-{program}", f"{kind}-{numbers[kind]}",
                ["--model", args.model, "--threads", str(len(cpus)),
                 "--kv-memory", args.kv_memory, "--weights", args.weights,
                 *flags], cpus, *environment)
            self.addresses[f"{kind}-{numbers[kind]}"] = addresses
            numbers[kind] += 1
            if kind == "dual":
                router_flags += ["--prefill", addresses["grpc"],
                                 "--decode", addresses["grpc_decode"]]
            else:
                router_flags += [f"--{kind}", addresses["grpc"]]
        router = programs.start_baton(args.bin / "baton-router", "router",
                                      router_flags, set(args.front_cpus))
        # The sides of a dual worker are not paired with each other.
        dual = numbers["dual"]
        pairs = ((numbers["prefill"] + dual) * (numbers["decode"] + dual)
                 - dual)

        def has_workers():
            metrics = get(f"http://{router['http']}/metrics")
            return (metric(metrics, "baton_worker_usable") == len(self.workers)
                    and metric(metrics, "baton_worker_pairs") == pairs)

        wait_for("the router's workers", has_workers)
        yield router
