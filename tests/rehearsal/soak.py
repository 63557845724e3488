#!/usr/bin/env python3
"""The rehearsal for hours: a trace is replayed while workers crash, hang, are
lost with their hosts, are replaced, come and go, at random. At the end nothing
may be lost, stuck or held, and no process may have grown.

    soak.py --bin build/release/bin --trace azure_2023_conversation.csv \\
        --minutes 120 --report soak.json

Needs root, dnsmasq and HAProxy. Prints what happens, and a summary in Markdown.
Exit code 0 when all held.
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from network import enter_private_network  # noqa: E402
from cluster import Cluster  # noqa: E402
from load import Probes  # noqa: E402
from processes import PATIENCE, await_that  # noqa: E402

COUNTS = {"router": 2, "prefill": 3, "decode": 3}
MOST, FEWEST = 4, 2  # workers of a pool
SAMPLE_SECONDS = 15
# A process is flat when it grew by less than this from one tenth of its life to
# its end: what allocators hold back varies by as much.
GROWTH_SHARE, GROWTH_BYTES = 0.05, 4 << 20
SETTLED_SECONDS = 600  # younger ones are not judged
# More than a router remembers for `baton explain`
# (router/request_history.h): at the trace's rate it would fill that for most of
# an hour, and look as if it leaked.
REMEMBERED = 4500
MIB = 1 << 20


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--trace", required=True, type=pathlib.Path)
    parser.add_argument("--length-scale", default="0.1",
                        help="of the trace's lengths; the model's context is "
                             "512 tokens (default 0.1)")
    parser.add_argument("--rate", type=float, default=2,
                        help="requests per second (default 2)")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--pause", type=float, default=40,
                        help="mean seconds between two events (default 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--placement", default="least-load",
                        help="of the routers (default least-load: every prompt "
                             "is handed over)")
    parser.add_argument("--report", type=pathlib.Path)
    args = parser.parse_args()
    args.bin, args.trace = args.bin.resolve(), args.trace.resolve()
    return args


class Life:
    """What one process was seen to hold."""

    def __init__(self, node):
        self.name = f"{node.name}, life {node.lives}"
        self.pool, self.started = node.pool, node.started
        self.samples = []  # (seconds of life, bytes, descriptors)

    def take(self, node):
        try:
            self.samples.append((time.monotonic() - self.started,
                                 node.resident(), node.descriptors()))
        except (OSError, IndexError):
            pass  # it has just ended

    def settled(self):
        return [one for one in self.samples if one[0] >= SETTLED_SECONDS]

    def growth(self):
        """Bytes from the first tenth after it settled to the last one; None:
        too young."""
        settled = self.settled()
        if len(settled) < 20:
            return None
        tenth = max(3, len(settled) // 10)
        middle = lambda part: sorted(one[1] for one in part)[len(part) // 2]
        return middle(settled[-tenth:]) - middle(settled[:tenth])

    def flat(self):
        growth, most = self.growth(), max(one[1] for one in self.samples)
        return growth is None or growth < max(GROWTH_BYTES, GROWTH_SHARE * most)

    def row(self):
        settled = self.settled() or self.samples
        growth = self.growth()
        return {"name": self.name, "pool": self.pool,
                "minutes": round(self.samples[-1][0] / 60, 1),
                "settled_mib": round(settled[0][1] / MIB, 1),
                "last_mib": round(settled[-1][1] / MIB, 1),
                "most_mib": round(max(one[1] for one in self.samples) / MIB, 1),
                "growth_mib": None if growth is None else round(growth / MIB, 2),
                "descriptors": settled[-1][2], "flat": self.flat()}


class Soak:
    def __init__(self, args, cluster):
        self.args, self.cluster = args, cluster
        self.random = random.Random(args.seed)
        self.begin = time.monotonic()
        # One of each kind lives from begin to end, so that it is seen for long.
        self.elders = [cluster.of(pool)[0] for pool in COUNTS]
        self.lives, self.events = {}, collections.Counter()
        self.joins, self.statuses = [], collections.Counter()

    def log(self, text):
        print(f"{(time.monotonic() - self.begin) / 60:6.1f} min  {text}",
              flush=True)

    def sample(self):
        for node in self.cluster.nodes:
            key = (node.name, node.lives)
            if key not in self.lives:
                self.lives[key] = Life(node)
            self.lives[key].take(node)

    def one_of(self, pool):
        """One that is not spared; none: None."""
        nodes = [node for node in self.cluster.of(pool)
                 if node not in self.elders]
        return self.random.choice(nodes) if nodes else None

    def event(self):
        pool = self.random.choice(["prefill", "decode"])
        many = len(self.cluster.of(pool))
        kinds = ["crash", "crash", "lose", "freeze", "replace"]
        kinds += ["grow"] if many < MOST else []
        kinds += ["shrink"] if many > FEWEST else []
        kind = self.random.choice(kinds)
        if kind == "replace" and self.random.random() < 0.3:
            pool = "router"
        node = self.one_of(pool)
        if node is None:
            kind = "grow"
        self.events[f"{kind} {pool}"] += 1
        self.log(f"{kind} {pool if node is None else node.name}")
        getattr(self, kind)(pool, node)
        self.sample()
        seconds = self.cluster.await_joined(2 * PATIENCE)
        self.joins.append(seconds)

    def crash(self, _, node):
        self.cluster.crash(node)
        node.process.ready()

    def lose(self, pool, node):
        self.cluster.lose(node)
        # As long as it takes somebody to notice that a host is gone.
        await_that(lambda: all(
            f'peer="{node.host.address}:' not in line or line.endswith(" 0")
            for router in self.cluster.of("router")
            for line in router.metrics().splitlines()
            if line.startswith("baton_worker_usable")),
            f"the loss of {node.name} is noticed")
        self.cluster.bury(node)
        self.cluster.add(pool)

    def freeze(self, _, node):
        self.cluster.freeze(node, self.random.uniform(0.5, 5))

    def grow(self, pool, _):
        self.cluster.add(pool)

    def shrink(self, _, node):
        self.statuses[self.cluster.remove(node)] += 1

    def replace(self, pool, node):
        new, status = self.cluster.replace(node)
        self.statuses[status] += 1
        if pool == "router":
            fill_history(self.args, self.cluster, new)

    def run(self, bench):
        """Until the trace is over."""
        next_sample = next_event = time.monotonic()
        next_event += self.args.pause
        deadline = self.begin + self.args.minutes * 60 + 10 * PATIENCE
        while bench.poll() is None:
            now = time.monotonic()
            if now > deadline:
                raise AssertionError("baton bench does not end")
            if now >= next_sample:
                self.sample()
                next_sample = now + SAMPLE_SECONDS
            # The last two minutes are calm.
            if (now >= next_event and
                    now < self.begin + (self.args.minutes - 2) * 60):
                self.event()
                next_event = (time.monotonic() +
                              self.random.expovariate(1 / self.args.pause))
            time.sleep(0.2)


def fill_history(args, cluster, router):
    """Short requests to this router, as many as it remembers."""
    subprocess.run(
        cluster.client.inside(
            [f"{args.bin}/baton", "bench", "serve", "--url",
             f"http://{router.host.address}:8000", "--requests",
             str(REMEMBERED), "--concurrency", "16", "--prompt-tokens",
             "20-100", "--output-tokens", "1-3", "--timeout", "120", "--quiet",
             "--json", "-"]),
        check=True, timeout=600, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL)


def start_bench(args, cluster, report):
    requests = int(args.rate * args.minutes * 60)
    return subprocess.Popen(
        cluster.client.inside(
            [f"{args.bin}/baton", "bench", "serve", "--url",
             f"http://{cluster.balancer.http}", "--trace", str(args.trace),
             "--length-scale", args.length_scale, "--max-context", "500",
             "--rate", str(args.rate), "--max-requests", str(requests),
             "--duration", str(args.minutes * 60),
             "--seed", str(args.seed), "--timeout", "120", "--quiet", "--json",
             str(report)]),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def summarize(args, soak, probes, summary, statuses):
    rows = [life.row() for life in soak.lives.values() if life.samples]
    judged = [row for row in rows if row["growth_mib"] is not None]
    failures = []
    if set(summary["outcomes"]) != {"finished"}:
        failures.append(f"requests of the trace: {summary['outcomes']} "
                        f"{summary['errors']}")
    if probes.wrong or probes.errors:
        failures.append(f"probes: {len(probes.wrong)} wrong answers, "
                        f"{len(probes.errors)} errors: "
                        f"{(probes.wrong + probes.errors)[:3]}")
    failures += [f"{row['name']} grew by {row['growth_mib']} MiB"
                 for row in rows if not row["flat"]]
    if set(statuses.values()) | set(soak.statuses) != {0}:
        failures.append(f"exit statuses: {soak.statuses} {statuses}")
    joins = sorted(soak.joins)
    return {
        "minutes": round((time.monotonic() - soak.begin) / 60, 1),
        "seed": args.seed, "rate": args.rate, "trace": args.trace.name,
        "length_scale": args.length_scale, "events": dict(soak.events),
        "seconds_until_all_routers_knew": {
            "median": round(joins[len(joins) // 2], 1),
            "longest": round(joins[-1], 1)} if joins else {},
        "probes": {"right": probes.right, "wrong": probes.wrong,
                   "errors": probes.errors,
                   "longest_seconds": round(probes.longest, 2)},
        "bench": summary, "processes": len(rows), "judged": judged,
        "failures": failures,
        "samples": {life.name: [[round(t), b, d] for t, b, d in life.samples]
                    for life in soak.lives.values()},
    }


def markdown(report):
    bench, probes = report["bench"], report["probes"]
    lines = [
        "| what | |", "| --- | --- |",
        f"| length | {report['minutes']} minutes, seed {report['seed']} |",
        f"| load | {bench['offered']} requests of {report['trace']}, "
        f"{report['rate']:g} a second, lengths times {report['length_scale']}: "
        f"{bench['prompt_tokens']} prompt tokens, {bench['output_tokens']} "
        "output tokens |",
        "| events | " + ", ".join(f"{count} {what}" for what, count in
                                  sorted(report["events"].items())) + " |",
        f"| requests | {bench['outcomes']}; the longest took "
        f"{bench['e2e_ms']['max'] / 1000:.1f} s, the longest gap between two "
        f"tokens {bench['longest_gap_ms']['max'] / 1000:.1f} s "
        f"(p99 {bench['longest_gap_ms']['p99'] / 1000:.1f} s) |",
        f"| answers compared | {probes['right']} equal, "
        f"{len(probes['wrong'])} not, {len(probes['errors'])} errors |",
        f"| after an event, until all routers used just the workers that "
        f"were there | {report['seconds_until_all_routers_knew']} s |",
        f"| processes | {report['processes']}, of which "
        f"{len(report['judged'])} lived long enough to be judged |", "",
        "| process | minutes | after 10 | last | most | growth | files |",
        "| --- | --: | --: | --: | --: | --: | --: |"]
    for row in sorted(report["judged"], key=lambda row: -row["minutes"]):
        lines.append(
            f"| {row['name']} | {row['minutes']} | {row['settled_mib']} | "
            f"{row['last_mib']} | {row['most_mib']} | {row['growth_mib']} | "
            f"{row['descriptors']} |")
    lines += ["", *(f"FAILED: {one}" for one in report["failures"])]
    return "\n".join(lines)


def main():
    args = parsed()
    enter_private_network()
    with tempfile.TemporaryDirectory(prefix="baton-soak-") as folder:
        cluster = Cluster(
            args.bin, folder, COUNTS,
            router_flags=["--placement", args.placement, "--max-attempts", "8"],
            worker_flags=["--kv-memory", "16MiB", "--kv-offload", "16MiB"])
        bench = probes = None
        try:
            cluster.await_joined()
            for router in cluster.of("router"):
                fill_history(args, cluster, router)
            soak = Soak(args, cluster)
            probes = Probes(cluster, pause=2)
            bench_report = pathlib.Path(folder) / "bench.json"
            bench = start_bench(args, cluster, bench_report)
            soak.run(bench)
            if bench.returncode:
                raise AssertionError(f"baton bench: exit {bench.returncode}")
            probes.stop()
            cluster.await_idle()
            soak.sample()
            soak.log("nothing is in use any more")
            summary = json.loads(bench_report.read_text())
            report = summarize(args, soak, probes,
                               summary.get("summary", summary), cluster.stop())
        finally:
            if bench and bench.poll() is None:
                bench.kill()
                bench.wait()
            if probes:
                probes.stop()
            cluster.abandon()
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n")
    print(markdown(report))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
