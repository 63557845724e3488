"""deploy/grafana and what deploy/ names: dashboards are what their script makes,
whole, laid out, described; metrics, recording rules and runbooks exist."""

import importlib.machinery
import importlib.util
import json
import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True

from expressions import DASHBOARDS, DEPLOY, ROOT, panels  # noqa: E402

GRAFANA = DEPLOY / "grafana"
GRID_WIDTH = 24
VARIABLES = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
UNITS = {"short", "s", "reqps", "ops", "percentunit", "bytes", "Bps"}


def load_script():
    sys.path.insert(0, str(GRAFANA))
    loader = importlib.machinery.SourceFileLoader(
        "make_dashboards", str(GRAFANA / "make_dashboards"))
    spec = importlib.util.spec_from_loader("make_dashboards", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def boards():
    return {path.name: json.loads(path.read_text()) for path in DASHBOARDS}


def read(*names):
    return "\n".join((DEPLOY / "prometheus" / "rules" / name).read_text()
                     for name in names)


class FilesTest(unittest.TestCase):
    def test_files_are_what_the_script_makes(self):
        made = load_script().made()
        self.assertEqual(sorted(made), [path.name for path in DASHBOARDS])
        for path in DASHBOARDS:
            self.assertEqual(path.read_text(), made[path.name],
                             "run deploy/grafana/make_dashboards")

    def test_boards_have_names_of_their_own(self):
        for field in ("uid", "title"):
            names = [board[field] for board in boards().values()]
            self.assertEqual(len(set(names)), len(names))
        for board in boards().values():
            self.assertLessEqual(len(board["uid"]), 40)
            self.assertIn("baton", board["tags"])  # the links go by it

    def test_provisioning_names_what_is_there(self):
        provider = (GRAFANA / "provisioning" / "dashboards" /
                    "baton.yml").read_text()
        self.assertRegex(provider, r"(?m)^apiVersion: 1$")
        self.assertRegex(provider, r"(?m)^ +path: /\S+$")
        source = (GRAFANA / "provisioning" / "datasources" /
                  "baton.yml").read_text()
        self.assertRegex(source, r"(?m)^ +type: prometheus$")


class PanelTest(unittest.TestCase):
    def each(self):
        """(its name for messages, panel) of all."""
        return [(f"{name}: {panel['title']}", panel)
                for name, board in boards().items() for panel in panels(board)]

    def test_panels_are_whole(self):
        for name, panel in self.each():
            with self.subTest(name):
                self.assertTrue(panel["title"])
                if panel["type"] == "row":
                    continue
                self.assertGreaterEqual(len(panel["description"]), 5)
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                defaults = panel["fieldConfig"]["defaults"]
                self.assertIn(defaults["unit"], UNITS)
                steps = defaults["thresholds"]["steps"]
                self.assertIsNone(steps[0]["value"])
                values = [step["value"] for step in steps[1:]]
                self.assertEqual(values, sorted(values))
                self.assertTrue(panel["targets"])
                ids = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(set(ids)), len(ids))
                for target in panel["targets"]:
                    self.assertEqual(target["datasource"], panel["datasource"])
                    self.assertEqual(target["expr"].count("("),
                                     target["expr"].count(")"))

    def test_legends_name_labels_that_the_expression_keeps(self):
        for name, panel in self.each():
            with self.subTest(name):
                for target in panel.get("targets", []):
                    labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
                    kept = re.findall(r"by \(([^)]*)\)", target["expr"])
                    if not kept:
                        continue
                    self.assertLessEqual(set(labels),
                                         set(re.findall(r"\w+", kept[0])))

    def test_ids_are_unique_and_panels_do_not_overlap(self):
        for name, board in boards().items():
            with self.subTest(name):
                ids = [panel["id"] for panel in panels(board)]
                self.assertEqual(len(set(ids)), len(ids))
                taken = {}
                for panel in board["panels"]:
                    place = panel["gridPos"]
                    self.assertLessEqual(place["x"] + place["w"], GRID_WIDTH)
                    for x in range(place["x"], place["x"] + place["w"]):
                        for y in range(place["y"], place["y"] + place["h"]):
                            other = taken.setdefault((x, y), panel["title"])
                            self.assertEqual(other, panel["title"])
                # No holes: a line is as wide as the board, or the last of a row.
                bottom = max(y for _, y in taken) + 1
                for y in range(bottom):
                    self.assertIn((0, y), taken, f"nothing at line {y}")

    def test_variables_are_there_and_used(self):
        builtin = {"__rate_interval", "__range", "__interval"}
        for name, board in boards().items():
            with self.subTest(name):
                there = {one["name"] for one in board["templating"]["list"]}
                text = json.dumps([board["panels"], board["templating"]])
                used = {a or b for a, b in VARIABLES.findall(text)}
                self.assertLessEqual(used - builtin - {"__all"}, there)
                self.assertLessEqual(there, used)
                self.assertIn("datasource", there)

    def test_rates_fit_the_scrape_interval(self):
        for name, panel in self.each():
            with self.subTest(name):
                for target in panel.get("targets", []):
                    for window in re.findall(r"\[([^\]]+)\]", target["expr"]):
                        self.assertIn(window, ("$__rate_interval", "1h"))


class NamesTest(unittest.TestCase):
    """Whatever deploy/ calls by name exists."""

    def setUp(self):
        self.rules = read("baton-recording.yml", "baton-alerts.yml")
        self.texts = {"rules": self.rules}
        for path in DASHBOARDS:
            board = json.loads(path.read_text())
            self.texts[path.name] = "\n".join(
                [target["expr"] for panel in panels(board)
                 for target in panel.get("targets", [])] +
                [str(one["query"]) for one in board["templating"]["list"]])
        # What others of deploy/ ask Prometheus for.
        for pattern in ("kubernetes/**/*.yaml", "kubernetes/**/*.yml",
                        "docker/**/*.yml", "docker/**/*.yaml"):
            for path in DEPLOY.glob(pattern):
                self.texts[str(path.relative_to(DEPLOY))] = "\n".join(
                    line for line in path.read_text().splitlines()
                    if not line.lstrip().startswith("#"))

    def test_metrics_are_documented(self):
        page = (ROOT / "docs" / "metrics.md").read_text()
        documented = set(re.findall(r"`(baton_[a-z_]+)[`{]", page))
        self.assertGreater(len(documented), 50)
        for name in set(documented):
            documented |= {f"{name}_{part}" for part in ("bucket", "sum",
                                                         "count")}
        # What Prometheus's adapter makes for Kubernetes has names of its own.
        for text in self.texts.values():
            documented |= set(re.findall(r"\bas: \"?(baton_\w+)", text))
        used = set()
        for name, text in self.texts.items():
            with self.subTest(name):
                here = set(re.findall(r"\bbaton_[a-z][a-z_]+[a-z]\b", text))
                used |= here
                self.assertLessEqual(here, documented)
        self.assertGreater(len(used), 50)

    def test_recording_rules_exist(self):
        records = set(re.findall(r"record: (\S+)",
                                 "\n".join(self.texts.values())))
        for name, text in self.texts.items():
            with self.subTest(name):
                self.assertLessEqual(
                    set(re.findall(r"\bbaton:\w+:\w+", text)), records)

    def test_recording_rules_are_used_or_described(self):
        page = (ROOT / "docs" / "monitoring.md").read_text()
        for record in re.findall(r"record: (\S+)", self.rules):
            with self.subTest(record):
                used = sum(len(re.findall(rf"{re.escape(record)}\b", text))
                           for text in self.texts.values())
                self.assertTrue(used > 1 or f"`{record}`" in page)


class AlertTest(unittest.TestCase):
    def setUp(self):
        text = read("baton-alerts.yml")
        self.alerts = dict(re.findall(
            r"- alert: (\w+)\n((?:(?!      - alert:).*\n)*)", text))

    def test_alerts_say_what_where_and_what_to_do(self):
        self.assertGreater(len(self.alerts), 20)
        for name, body in self.alerts.items():
            with self.subTest(name):
                self.assertRegex(body, r"severity: (critical|warning)\n")
                for field in ("summary", "description", "runbook_url"):
                    self.assertRegex(body, rf"\n +{field}: \S")

    def test_each_alert_has_its_runbook(self):
        page = (ROOT / "docs" / "operations.md").read_text()
        headings = re.findall(r"(?m)^#+ (.+)$", page)
        # As GitHub makes anchors of headings.
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                   for heading in headings}
        for name, body in self.alerts.items():
            with self.subTest(name):
                url = re.search(r"runbook_url: (\S+)", body)[1]
                self.assertEqual(url, f"docs/operations.md#{name.lower()}")
                self.assertIn(name.lower(), anchors)
        runbooks = {heading for heading in headings
                    if heading.startswith("Baton") and " " not in heading}
        self.assertEqual(runbooks, set(self.alerts))


if __name__ == "__main__":
    unittest.main()
