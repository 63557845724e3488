"""A cluster whose processes have hosts of their own: what its operator does to
it, what may happen to it, and what is seen of it from outside.
"""

import os
import pathlib
import re
import signal
import subprocess
import time

from network import (  # noqa: E402
    ROOT, ZONE, Host, LoadBalancer, NameServer)
from processes import (  # noqa: E402
    PATIENCE, Process, await_that, fetch, samples)

NAME_SERVER, LOAD_BALANCER, CLIENT, FIRST_NODE, LAST_NODE = 2, 3, 4, 10, 250
# --transport and --kv-encryption of prefill workers.
WAYS = [("auto", "tls"), ("ucx", "off"), ("auto", "off")]
CONTROL_PORT = {"prefill": 8701, "decode": 8702, "router": 8600}


def make_certificates(folder):
    """What --cluster-tls is given: a CA, and a member's certificate of it."""
    folder.mkdir()

    def openssl(*command):
        subprocess.run(["openssl", *command], cwd=folder, check=True,
                       capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=rehearsal",
            "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", "/CN=member", "-keyout", "key.pem", "-out",
            "member.csr")
    openssl("x509", "-req", "-in", "member.csr", "-CA", "ca.pem", "-CAkey",
            "ca.key", "-CAcreateserial", "-days", "2", "-out", "cert.pem")
    return folder


class Node:
    """A host with one router or worker."""

    def __init__(self, cluster, pool, number):
        self.cluster, self.pool = cluster, pool
        self.name = f"{pool}-{number}"
        self.host = Host(number)
        self.lives = 0
        try:
            self.start()
        except BaseException:
            self.host.remove()
            raise

    def start(self):
        """The process; it is not ready yet."""
        self.lives += 1
        self.started = time.monotonic()
        address, port = self.host.address, CONTROL_PORT[self.pool]
        self.process = Process(
            self.host.inside(
                [f"{self.cluster.binaries}/baton-{self.pool}", "--name",
                 self.name, "--listen", f"{address}:{port}", "--metrics",
                 f"{address}:9600", "--die-with-parent",
                 *self.cluster.flags(self.pool, address)]),
            self.cluster.folder / f"{self.name}.{self.lives}.log")

    def metrics(self):
        return fetch(f"{self.host.address}:9600", "/metrics", patience=10)

    def sum(self, metric):
        return sum(samples(self.metrics(), metric).values())

    def resident(self):
        """Bytes of memory that the process has."""
        pages = pathlib.Path(f"/proc/{self.process.child.pid}/statm").read_text()
        return int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.child.pid}/fd"))


class Cluster:
    """Routers and workers that find each other by DNS, and the way in."""

    def __init__(self, binaries, folder, counts, router_flags=(),
                 worker_flags=()):
        self.binaries, self.folder = binaries, pathlib.Path(folder)
        self.router_flags = list(router_flags)
        self.worker_flags = list(worker_flags)
        self.certificates = make_certificates(self.folder / "tls")
        self.nodes, self.next_number = [], FIRST_NODE
        self.names = self.balancer = self.client = None
        try:
            self.names = NameServer(NAME_SERVER, folder)
            self.balancer = LoadBalancer(LOAD_BALANCER, folder,
                                         self.names.address)
            self.client = Host(CLIENT)
            for pool, count in counts.items():
                for _ in range(count):
                    self.add(pool, wait=False)
            for node in self.nodes:
                node.process.ready()
            self.await_joined()
            self.balancer.await_serving()
        except BaseException:
            self.abandon()
            raise

    def flags(self, pool, address):
        model = ["--model", str(ROOT / "models" / "stories"),
                 "--cluster-tls", str(self.certificates)]
        if pool == "router":
            return [*model, "--http", f"{address}:8000", "--discovery-server",
                    self.names.address, "--discovery-interval", "1",
                    "--prefill", f"dns:prefill.{ZONE}:8701",
                    "--decode", f"dns:decode.{ZONE}:8702", *self.router_flags]
        # Decode workers take all ways between hosts, at one port; of prefill
        # workers each has one of them.
        transport, encryption = "auto", "off"
        if pool == "prefill":
            transport, encryption = WAYS[int(address.split(".")[-1]) % len(WAYS)]
        return [*model, "--threads", "1", "--transport", transport,
                "--kv-encryption", encryption, "--data-host", address,
                *self.worker_flags]

    def of(self, pool):
        return [node for node in self.nodes if node.pool == pool]

    def workers(self):
        return self.of("prefill") + self.of("decode")

    # What an operator does.

    def add(self, pool, wait=True):
        """One more; its name has its address once it is ready."""
        node = Node(self, pool, self.next_number)
        # Addresses are used again, as clusters do, but late.
        self.next_number += 1
        if self.next_number > LAST_NODE:
            self.next_number = FIRST_NODE
        self.nodes.append(node)
        if wait:
            node.process.ready()
        self.names.add(pool, node.host.address)
        return node

    def remove(self, node):
        """Takes it out as a cluster manager does: its name first, then SIGTERM.
        The exit status."""
        self.names.remove(node.pool, node.host.address)
        if node.pool == "router":
            # What preStop is for: the load balancer has looked the name up again,
            # and streams that run have ended.
            await_that(lambda: not self.balancer.uses(node.host.address),
                       f"the load balancer leaves {node.name} out")
            await_that(lambda: not node.sum("baton_num_requests_running") and
                       not node.sum("baton_num_requests_waiting"),
                       f"{node.name} has no requests")
        status = node.process.terminate()
        self._forget(node)
        return status

    def replace(self, node):
        """A rolling update's step: the new one first. The old one's status."""
        new = self.add(node.pool)
        self.await_joined()
        return new, self.remove(node)

    # What happens to it.

    def crash(self, node):
        """Its process ends at once and is started again at its address."""
        node.process.kill()
        node.process.close()
        node.start()

    def lose(self, node):
        """The machine is gone: no word of it to anybody."""
        node.host.unplug()
        node.process.kill()

    def bury(self, node):
        """One that was lost: its name goes, as when a cluster manager notices."""
        self.names.remove(node.pool, node.host.address)
        self._forget(node)

    def freeze(self, node, seconds):
        """It is not let run for so long."""
        node.process.child.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            node.process.child.send_signal(signal.SIGCONT)

    def _forget(self, node):
        self.nodes.remove(node)
        node.process.close()
        node.host.remove()

    # What is seen.

    def joined(self):
        """Whether each router uses just the workers that are there, each paired
        with those of the other pool."""
        pairs = len(self.of("prefill")) * len(self.of("decode"))
        for router in self.of("router"):
            try:
                page = router.metrics()
            except OSError:
                return False
            usable = samples(page, "baton_worker_usable")
            if (sorted(usable.values()) != [1] * len(self.workers()) or
                    sum(samples(page, "baton_worker_pairs").values()) != pairs):
                return False
        return True

    def ways(self):
        """What KV has come by to decode workers: {"tcp/tls", ...}"""
        return {
            re.search('transport="(.*?)"', labels).group(1)
            for node in self.of("decode") for labels, count in samples(
                node.metrics(), "baton_kv_transfers_total").items()
            if 'outcome="ok"' in labels and count}

    def view(self):
        """What each router sees."""
        lines = [f"there are {[node.name for node in self.nodes]}"]
        for router in self.of("router"):
            page = router.metrics()
            lines += [router.name, *(
                line for line in page.splitlines() if line.startswith(
                    ("baton_worker_", "baton_router_discover")))]
            log = (self.folder / f"{router.name}.{router.lives}.log")
            lines += log.read_text(errors="replace").splitlines()[-30:]
        return "\n".join(lines)

    def await_joined(self, patience=PATIENCE):
        """Seconds that it took."""
        begin = time.monotonic()
        try:
            await_that(self.joined, "all routers use all workers", patience)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.view()}") from None
        return time.monotonic() - begin

    def await_idle(self):
        """Nothing runs, waits or holds a block."""
        def idle():
            return not any(
                node.sum(metric) for node in self.nodes for metric in
                ("baton_num_requests_running", "baton_num_requests_waiting",
                 "baton_kv_blocks_in_use", "baton_kv_blocks_quarantined"))
        await_that(idle, "no request and no block in use is left")

    def stop(self):
        """Everything drains. {name: exit status}"""
        statuses = {}
        for node in [*self.of("router"), *self.workers()]:
            statuses[node.name] = node.process.terminate()
        self.abandon()
        return statuses

    def abandon(self):
        for node in self.nodes:
            node.process.stop()
            node.host.remove()
        self.nodes = []
        for part in (self.balancer, self.names):
            if part:
                part.stop()
        if self.client:
            self.client.remove()
        self.balancer = self.names = self.client = None
