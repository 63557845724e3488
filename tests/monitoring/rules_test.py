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
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PROMETHEUS, f"{folder}/deploy/prometheus")
            tests = pathlib.Path(folder) / "tests" / "monitoring"
            tests.mkdir(parents=True)
            shutil.copy(HERE / "alerts_test.yml", tests)
            rules = (pathlib.Path(folder) / "deploy" / "prometheus" / "rules" /
                     "baton-alerts.yml")
            for right, wrong in (("> 14.4", "> 44.4"), ("> 0.8", "> 0.4"),
                                 ("min_over_time(baton_kv", "max_over_time(baton_kv")):
                self.assertIn(right, ALERTS)
                rules.write_text(ALERTS.replace(right, wrong))
                code, _ = promtool("test", "rules", "alerts_test.yml", cwd=tests)
                self.assertNotEqual(code, 0, wrong)

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
