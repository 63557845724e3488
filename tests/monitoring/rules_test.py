"""deploy/prometheus by promtool: configurations and rules are valid, and rules
do what the *_test.yml files beside this one say. Ends with 77 (skipped) where
there is no promtool.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
ALERTS = (PROMETHEUS / "rules" / "baton-alerts.yml").read_text()


def promtool(*arguments, cwd=HERE):
    run = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout


class PromtoolTest(unittest.TestCase):
    def passes(self, *arguments, cwd=HERE):
        code, said = promtool(*arguments, cwd=cwd)
        self.assertEqual(code, 0, said)

    def test_rules_are_valid(self):
        self.passes("check", "rules", *PROMETHEUS.glob("rules/*.yml"))

    def test_configurations_are_valid(self):
        files = sorted(PROMETHEUS.glob("prometheus-*.yml"))
        self.assertEqual(len(files), 3)
        for path in files:
            with self.subTest(path.name):
                code, said = promtool("check", "config", path)
                if "kubernetes_sd_configs not found" in said:
                    # Debian's Prometheus is built without Kubernetes; the rest
                    # of the file with another discovery in its place.
                    code, said = self.check_without_kubernetes(path.read_text())
                self.assertEqual(code, 0, said)

    def check_without_kubernetes(self, text):
        text, count = re.subn(
            r"kubernetes_sd_configs:\n(?: {6}.*\n)+",
            "static_configs:\n      - targets: [pod:9600]\n", text)
        self.assertEqual(count, 1)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PROMETHEUS / "rules", f"{folder}/rules")
            path = pathlib.Path(folder) / "prometheus.yml"
            path.write_text(text)
            return promtool("check", "config", path)

    def test_rules_do_what_they_shall(self):
        for path in sorted(HERE.glob("*_test.yml")):
            with self.subTest(path.name):
                self.passes("test", "rules", path.name)

    def test_a_wrong_rule_is_noticed(self):
        text = (HERE / "alerts_test.yml").read_text()
        header, *cases = re.split(r"(?m)^(?=  - name: )", text)
        cases = {re.match(r"  - name: (\w+)", case)[1]: case for case in cases}
        wrongs = {
            "BatonRouterLineFull": ("> 0.8", "> 0.4"),
            "BatonKvPressure": ("baton:pool_kv_usage:avg > 0.9",
                                "baton_kv_cache_usage_perc > 0.9"),
            "BatonBlocksQuarantined": ("min_over_time(baton_kv_blocks",
                                       "max_over_time(baton_kv_blocks"),
            "BatonWorkersSlow": ("(baton_worker_false_losses_total[15m])) > 2",
                                 "(baton_worker_false_losses_total[15m])) > 1"),
            "BatonWorkerStuck": ("baton_prompt_tokens_waiting > 0",
                                 "baton_prompt_tokens_waiting >= 0"),
        }
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PROMETHEUS, f"{folder}/deploy/prometheus")
            tests = pathlib.Path(folder) / "tests" / "monitoring"
            tests.mkdir(parents=True)
            rules = (pathlib.Path(folder) / "deploy" / "prometheus" / "rules" /
                     "baton-alerts.yml")
            for name, (right, wrong) in wrongs.items():
                (tests / "one.yml").write_text(header + cases[name])
                self.assertIn(right, ALERTS)
                for one, as_it_shall in ((right, True), (wrong, False)):
                    rules.write_text(ALERTS.replace(right, one))
                    code, said = promtool("test", "rules", "one.yml", cwd=tests)
                    self.assertEqual(code == 0, as_it_shall, f"{name}: {said}")

    def test_each_alert_has_a_case(self):
        cases = (HERE / "alerts_test.yml").read_text()
        for name in re.findall(r"- alert: (\w+)", ALERTS):
            self.assertIn(f'ALERTS{{alertname="{name}",alertstate="firing"',
                          cases)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("skipped: there is no promtool (Debian package prometheus)")
        sys.exit(77)
    unittest.main()
