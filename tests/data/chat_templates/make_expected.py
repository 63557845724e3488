#!/usr/bin/env python3
"""Writes language.json and families.json: what Jinja2 makes of templates.

    python3 tests/data/chat_templates/make_expected.py

Needs Jinja2 3.1 (python3-jinja2). The environment is the one that Hugging
Face's transformers makes for `apply_chat_template`. The templates are in
templates.txt and families/; an answer of null stands for an error.
"""

import datetime
import json
import pathlib
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 3, 7, 9, 5, 2, 1234)
# Templates that came with expected answers of their own, for fewer inputs.
MODELS = ["gemma-2", "llama-3.1", "mistral-nemo", "phi-3.5", "qwen2.5", "qwen3"]


class Generation(jinja2.ext.Extension):
    """{% generation %}: what the assistant said; here it is just text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_text")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent,
                      separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(template, variables):
    """(text, error): one of them is None."""
    given = {"messages": [], "tools": None, "documents": None,
             "add_generation_prompt": True}
    given.update(variables)
    try:
        text = environment().from_string(template).render(**given)
        text.encode("utf-8")
        return text, None
    except Exception as error:  # whatever a template can do to Python
        return None, f"{type(error).__name__}: {error}"


def sections(text):
    """The parts of templates.txt: name, template. See its first lines."""
    for part in re.split(r"^=== ", text, flags=re.M)[1:]:
        name, _, template = part.partition("\n")
        if template.endswith("\n"):
            template = template[:-1]
        yield name.strip(), template


def main():
    inputs = json.loads((HERE / "inputs.json").read_text(encoding="utf-8"))
    cases = []
    for name, template in sections(
            (HERE / "templates.txt").read_text(encoding="utf-8")):
        text, _ = render(template, inputs["language"])
        cases.append({"name": name, "template": template, "expected": text})
    write("language.json", cases)
    cases = []
    families = {path.stem: path.read_text(encoding="utf-8")
                for path in (HERE / "families").glob("*.jinja")}
    for model in MODELS:
        data = json.loads((HERE / f"{model}.json").read_text(encoding="utf-8"))
        families[model] = data["template"]
    for family, template in sorted(families.items()):
        for name, variables in inputs["conversations"].items():
            text, error = render(template, variables)
            if error is not None and not error.startswith("TemplateError"):
                error = ""
            cases.append({"family": family, "conversation": name,
                          "expected": text, "error": error})
    write("families.json", cases)


def write(name, cases):
    (HERE / name).write_text(
        json.dumps(cases, ensure_ascii=False, indent=1) + "\n",
        encoding="utf-8")
    failed = sum(case["expected"] is None for case in cases)
    print(f"{name}: {len(cases)} cases, {failed} of them errors")


if __name__ == "__main__":
    main()
