"""A cluster as in production, without Kubernetes: routers, prefill and decode
workers on hosts of their own, found by DNS, behind a load balancer. Pools grow
and shrink, a version is rolled out, processes crash, hosts are lost, while
`baton bench` runs: nothing is lost, and every answer is the one that it always
is.

Ends with 77 (skipped) where there are no network namespaces, or without dnsmasq
and HAProxy.
"""

import os
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

from network import NotPossible, enter_private_network  # noqa: E402
from cluster import Cluster  # noqa: E402
from load import Bench, Probes, ask_at_once  # noqa: E402
from processes import PATIENCE, await_that  # noqa: E402

COUNTS = {"router": 2, "prefill": 3, "decode": 3}
FLAGS = {
    # Every request is handed over; ADR 32 says when a router would not.
    "router_flags": ["--placement", "least-load", "--max-attempts", "8"],
    "worker_flags": ["--kv-memory", "16MiB", "--kv-offload", "16MiB"],
}


class RehearsalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="baton-rehearsal-",
                                             ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.cluster = Cluster(os.environ["BATON_BIN_DIR"], folder.name, COUNTS,
                               **FLAGS)
        self.addCleanup(self.cluster.abandon)

    def step(self, what):
        """Says what comes, once the clients have been answered since the last
        time."""
        before = self.probes.answered()
        await_that(lambda: self.probes.answered() >= before + 4,
                   f"answers before: {what}")
        print(f"{time.monotonic() - self.begin:5.1f} s  {what}", flush=True)

    def begin_load(self):
        self.begin = time.monotonic()
        self.probes = Probes(self.cluster)
        self.addCleanup(self.probes.stop)

    def joined(self):
        seconds = self.cluster.await_joined()
        print(f"         known to all routers after {seconds:.1f} s")

    def finish(self):
        self.probes.stop()
        self.assertEqual(self.probes.wrong, [])
        self.assertGreater(self.probes.right, 0)
        self.cluster.await_idle()

    def test_nothing_is_lost(self):
        cluster = self.cluster
        self.begin_load()
        bench = Bench(cluster)
        self.addCleanup(bench.stop)

        def every_way():
            # Workers that are idle get nothing over a slow link while there is
            # a fast one; of many prompts at once each gets some.
            ask_at_once(cluster.balancer.http, 4 * COUNTS["prefill"])
            return cluster.ways() >= {"tcp", "tcp/tls", "ucx/tcp"}

        await_that(every_way, "KV comes by every way")
        self.step("both pools grow")
        added = [cluster.add("prefill"), cluster.add("decode")]
        self.joined()
        self.step("both pools shrink, by their oldest")
        for pool in ("prefill", "decode"):
            self.assertEqual(cluster.remove(cluster.of(pool)[0]), 0)
        self.joined()
        self.step("a worker of each pool crashes and is started again")
        for node in added:
            cluster.crash(node)
        for node in added:
            node.process.ready()
        self.joined()
        self.step("a decode worker stands still for three seconds")
        cluster.freeze(cluster.of("decode")[0], 3)
        self.joined()
        for pool in ("decode", "prefill"):
            self.step(f"a host with a {pool} worker is lost")
            node = cluster.of(pool)[0]
            cluster.lose(node)
            self.step("its name is taken back, and another one comes")
            cluster.bury(node)
            cluster.add(pool)
            self.joined()
        for pool in ("decode", "prefill", "router"):
            for node in cluster.of(pool):
                self.step(f"a new version replaces {node.name}")
                self.assertEqual(cluster.replace(node)[1], 0)
        self.step("the end")
        bench.stop()
        self.finish()
        print(f"baton bench: {bench.outcomes}, longest gap "
              f"{bench.longest_gap_ms:.0f} ms; {self.probes.right} equal answers, "
              f"the slowest in {self.probes.longest:.1f} s")
        self.assertEqual(bench.errors, [])
        self.assertEqual(set(bench.outcomes), {"finished"})
        self.assertEqual(self.probes.errors, [])
        self.assertEqual(set(cluster.stop().values()), {0})

    def test_a_router_is_lost(self):
        """Its streams end; whoever asks again gets the same answer."""
        cluster = self.cluster
        self.begin_load()
        self.step("a host with a router is lost")
        node = cluster.of("router")[0]
        cluster.lose(node)
        self.step("its name is taken back, and another one comes")
        cluster.bury(node)
        cluster.add("router")
        self.joined()
        self.step("the end")
        self.finish()
        # Each probe has one request at a time, and asks at most twice before the
        # load balancer leaves the router out.
        self.assertLessEqual(len(self.probes.errors), 8, self.probes.errors)
        print(f"{len(self.probes.errors)} answers broke off, "
              f"{self.probes.right} are equal; the slowest in "
              f"{self.probes.longest:.1f} s")
        self.assertEqual(set(cluster.stop().values()), {0})


if __name__ == "__main__":
    try:
        enter_private_network()
    except NotPossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()
