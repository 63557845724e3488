"""A real Prometheus, with the files of deploy/prometheus, scrapes a real
cluster: every expression of every rule, alert and dashboard has a value.

Intervals are short, so that rates are there in seconds. Ends with 77 (skipped)
where there is no Prometheus.
"""

import math
import os
import re
import shutil
import sys
import time
import unittest

sys.dont_write_bytecode = True

from cluster import (  # noqa: E402
    PATIENCE, Cluster, Load, Prometheus, await_that, scratch)
from expressions import (  # noqa: E402
    panel_expressions, substituted, without_thresholds)

INTERVAL = "500ms"
WINDOW = "15s"  # all windows of rules; also of $__rate_interval
ALERT_AFTER = "1s"


def hurry(text):
    """A file of deploy/prometheus with short intervals."""
    text = re.sub(r"\[\d+[smhd]\]", f"[{WINDOW}]", text)
    text = re.sub(r"^( +for: )\d+[smh]$", rf"\g<1>{ALERT_AFTER}", text,
                  flags=re.MULTILINE)
    text = re.sub(r"(\b|_)(interval: )\d+s", rf"\g<1>\g<2>{INTERVAL}", text)
    return text.replace(f"scrape_interval: {INTERVAL}",
                        f"scrape_interval: {INTERVAL}\n"
                        f"  scrape_timeout: {INTERVAL}")


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cluster = Cluster(
            os.environ["BATON_BIN_DIR"], cls.folder.name, transport="ucx",
            worker_flags=["--kv-offload", "8MiB"],
            router_flags=["--placement", "cost-model", "--local-prefill", "off",
                          # A collector that is not there.
                          "--otlp-endpoint", "http://127.0.0.1:9",
                          "--ttft-target-ms", "60000",
                          "--itl-target-ms", "60000"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.prometheus = Prometheus(cls.folder.name, cls.cluster, hurry)
        cls.addClassCleanup(cls.prometheus.stop)
        cls.load = Load(cls.cluster)
        cls.addClassCleanup(cls.load.stop)

    def setUp(self):
        # For all expressions of a test together: many that are wrong must not
        # take many times as long.
        self.end = time.monotonic() + PATIENCE

    def value(self, expression):
        """A number that the expression has, in the end."""
        def found():
            return [value for _, value in self.prometheus.query(expression)
                    if math.isfinite(value)]
        return await_that(found, f"no data of: {expression}",
                          max(0, self.end - time.monotonic()))

    def rules(self, kind):
        groups = self.prometheus.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]
                if rule["type"] == kind]

    def test_targets_are_up(self):
        def all_up():
            targets = self.prometheus.get("targets")["activeTargets"]
            return len(targets) == 5 and all(
                target["health"] == "up" for target in targets)
        await_that(all_up, "all targets are up")

        def pools():
            up = sorted(labels["pool"]
                        for labels, _ in self.prometheus.query("up == 1"))
            return up == ["decode", "decode", "prefill", "prefill", "router"]
        await_that(pools, "each target has its pool")

    def test_recording_rules_have_values(self):
        rules = self.rules("recording")
        self.assertGreater(len(rules), 30)
        for rule in rules:
            with self.subTest(rule["name"]):
                labels = ",".join(f'{name}="{value}"' for name, value
                                  in rule.get("labels", {}).items())
                self.value(f"{rule['name']}{{{labels}}}")

    def test_alerts_would_see_something(self):
        rules = self.rules("alerting")
        self.assertGreater(len(rules), 20)
        for rule in rules:
            with self.subTest(rule["name"]):
                # What is said to be absent is there.
                inner = re.fullmatch(r"absent\((.*)\)", rule["query"])
                self.value(without_thresholds(
                    inner[1] if inner else rule["query"]))

    def test_panels_have_values(self):
        expressions = list(panel_expressions())
        self.assertGreater(len(expressions), 80)
        for board, title, expression in expressions:
            with self.subTest(f"{board}: {title}"):
                self.value(substituted(expression, WINDOW))

    def test_rules_are_evaluated_without_errors(self):
        def evaluated():
            return all(rule["health"] == "ok" for kind in ("recording",
                                                           "alerting")
                       for rule in self.rules(kind))
        await_that(evaluated, "all rules are evaluated")

    # The last one by name: it leaves the cluster with a worker less.
    def test_the_loss_of_a_worker_is_told(self):
        self.cluster.processes["decode-1"].kill()

        def firing():
            return {alert["labels"]["alertname"]
                    for alert in self.prometheus.get("alerts")["alerts"]
                    if alert["state"] == "firing"} >= {
                        "BatonProcessDown", "BatonWorkerDisconnected"}
        await_that(firing, "alerts fire for a worker that was killed")


class WithoutThresholdsTest(unittest.TestCase):
    def test_comparisons_become_numbers(self):
        self.assertEqual(
            without_thresholds('a{b=~"x>1",c!="=="} > 5 and sum(d >= 0) == 0'),
            'a{b=~"x>1",c!="=="} > bool 5 and sum(d >= bool 0) == bool 0')


if __name__ == "__main__":
    if shutil.which("prometheus") is None:
        print("skipped: there is no prometheus (Debian package prometheus)")
        sys.exit(77)
    unittest.main()
