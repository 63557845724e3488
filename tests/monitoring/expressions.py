"""The expressions of deploy/, for tests."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))

# Outside of strings and of {label matchers}.
COMPARISON = re.compile(r'"(?:\\.|[^"\\])*"|\{[^}]*\}|(==|!=|>=|<=|>|<)')


def without_thresholds(expression):
    """Each comparison says 0 or 1 where it would leave a series out, and what
    there shall not be is there, so that an alert's expression has a value as long
    as its metrics and labels fit."""
    def replaced(match):
        return f"{match[1]} bool" if match[1] else match[0]
    return COMPARISON.sub(replaced, expression).replace(" unless ", " and ")


def panels(board):
    for one in board["panels"]:
        yield one
        yield from one.get("panels", [])


def panel_expressions():
    """(dashboard, panel title, expression with variables) of all dashboards."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for one in panels(board):
            for target in one.get("targets", []):
                yield path.stem, one["title"], target["expr"]


def substituted(expression, interval, variables=()):
    """As Grafana does it with `All` chosen for each variable."""
    for name, value in variables:
        expression = expression.replace(f"${name}", value)
    expression = expression.replace("$__rate_interval", interval)
    return re.sub(r"\$(namespace|model|pool|worker)\b", ".*", expression)
