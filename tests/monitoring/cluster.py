"""A cluster of a build, and a Prometheus that scrapes it, for one test.

Every wait has a deadline. What was started is ended in the end, by its id.
"""

import http.client
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from processes import (  # noqa: E402
    PATIENCE, Process, await_that, fetch, free_port)

PROMETHEUS = ROOT / "deploy" / "prometheus"


class Cluster:
    """A router over prefill and decode workers, and a file with the addresses of
    their metrics, as `baton up --prometheus-targets` writes it."""

    def __init__(self, binaries, folder, prefill=2, decode=2, router_flags=(),
                 kv_memory="32MiB", transport="auto", worker_flags=()):
        self.folder = pathlib.Path(folder)
        self.processes, self.metrics = {}, {}
        self.commands, self.grpc = {}, {}
        model = str(ROOT / "models" / "stories")
        addresses = []
        pools = {"prefill": prefill, "decode": decode}
        names = [(pool, f"{pool}-{i}") for pool, n in pools.items()
                 for i in range(n)]
        try:
            for pool, name in names:
                self._start(binaries, pool, name, [
                    "--model", model, "--threads", "1",
                    "--kv-memory", kv_memory, "--transport", transport,
                    *worker_flags])
            for pool, name in names:
                ready = self.processes[name].ready()
                self.metrics[name] = ready["metrics"]
                self.grpc[name] = ready["grpc"]
                addresses += [f"--{pool}", ready["grpc"]]
            self._start(binaries, "router", "router", [
                "--model", model, *addresses, *router_flags])
            ready = self.processes["router"].ready()
            self.metrics["router"] = ready["metrics"]
            self.http = ready["http"]
            self._await_joined(len(names))
        except BaseException:
            self.stop()
            raise

    def _start(self, binaries, pool, name, flags):
        self.commands[name] = [f"{binaries}/baton-{pool}", "--name", name,
                               "--die-with-parent", *flags]
        self.processes[name] = Process(self.commands[name],
                                       self.folder / f"{name}.log")

    def restart(self, name):
        """A worker that was killed, at its addresses."""
        self.processes[name].stop()
        self.processes[name] = Process(
            [*self.commands[name], "--listen", self.grpc[name],
             "--metrics", self.metrics[name]], self.folder / f"{name}-2.log")
        self.processes[name].ready()

    def _await_joined(self, workers):
        def joined():
            text = fetch(self.metrics["router"], "/metrics")
            return len(re.findall(r"^baton_worker_usable.* 1$", text,
                                  re.MULTILINE)) == workers
        await_that(joined, "the router uses all workers")

    def write_targets(self, path):
        groups = {}
        for name, address in self.metrics.items():
            groups.setdefault(name.split("-")[0], []).append(address)
        path.write_text(json.dumps([
            {"targets": targets, "labels": {"pool": pool}}
            for pool, targets in groups.items()]))

    def complete(self, body, headers=None):
        """One completion; the answer's status."""
        host, port = self.http.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port),
                                                timeout=PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {
                "content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def stop(self):
        # The router first, so that nothing new begins.
        for name in sorted(self.processes, reverse=True):
            self.processes[name].stop()
        self.processes = {}


class Load:
    """Requests one after the other in some threads, until the end."""

    def __init__(self, cluster, threads=2):
        self.cluster, self.ended = cluster, threading.Event()
        self.threads = [threading.Thread(target=self._run, args=[i], daemon=True)
                        for i in range(threads)]
        for thread in self.threads:
            thread.start()

    def _run(self, index):
        turn = 0
        while not self.ended.is_set():
            turn += 1
            shared = "Once upon a time there was a little dog who "
            body = {"prompt": shared * 3 + f"{index} {turn}", "max_tokens": 24,
                    "ignore_eos": True}
            batch = {"x-baton-class": "batch", "x-baton-ttft-ms": "60000",
                     "x-baton-itl-ms": "60000"}
            try:
                self.cluster.complete(body, batch if turn % 3 == 0 else None)
            except OSError:
                self.ended.wait(0.05)

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def autoscaling_rules():
    """Those of deploy/kubernetes, which are a resource there, as a rule file."""
    resource = (ROOT / "deploy" / "kubernetes" / "components" /
                "autoscaling-rules" / "pressure.yaml").read_text()
    return textwrap.dedent(resource.split("\nspec:\n")[1])


class Prometheus:
    """Prometheus with the files of deploy/prometheus, whose intervals `rewrite`
    may change: text of a file -> text."""

    def __init__(self, folder, cluster, rewrite=lambda text: text):
        self.folder = pathlib.Path(folder)
        home = self.folder / "prometheus"
        (home / "rules").mkdir(parents=True)
        (home / "targets").mkdir()
        for path in [PROMETHEUS / "prometheus-local.yml",
                     *PROMETHEUS.glob("rules/*.yml")]:
            (home / path.relative_to(PROMETHEUS)).write_text(
                rewrite(path.read_text()))
        (home / "rules" / "autoscaling.yml").write_text(
            rewrite(autoscaling_rules()))
        cluster.write_targets(home / "targets" / "cluster.json")
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(self.folder / "prometheus.log", "wb")
        self.child = subprocess.Popen(
            [shutil.which("prometheus"),
             f"--config.file={home / 'prometheus-local.yml'}",
             f"--storage.tsdb.path={self.folder / 'data'}",
             f"--web.listen-address={self.address}", "--log.level=warn"],
            stdout=self.log, stderr=subprocess.STDOUT)
        try:
            await_that(self._serves, "Prometheus is ready")
        except BaseException:
            self.stop()
            raise

    def _serves(self):
        if self.child.poll() is not None:
            raise AssertionError(
                (self.folder / "prometheus.log").read_text(errors="replace"))
        try:
            return "Ready" in fetch(self.address, "/-/ready")
        except OSError:
            return False

    def get(self, path, **query):
        answer = json.loads(fetch(self.address, f"/api/v1/{path}", **query))
        if answer["status"] != "success":
            raise AssertionError(f"{query}: {answer}")
        return answer["data"]

    def query(self, expression):
        """(labels, value) of each series."""
        return [(one["metric"], float(one["value"][1]))
                for one in self.get("query", query=expression)["result"]]

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()


def scratch():
    return tempfile.TemporaryDirectory(prefix="baton-monitoring-",
                                       ignore_cleanup_errors=True)
