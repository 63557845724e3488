#!/usr/bin/env python3
"""tools/check_handoff: what it calls equal, and what it says of the rest."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS / name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


tool = load("check_handoff")


def run(one, two, requests=3):
    """Its exit code and output, when the two systems answer so."""
    out = io.StringIO()
    with mock.patch.object(tool, "answers_of", side_effect=[one, two]), \
            mock.patch.object(sys, "argv",
                              ["check_handoff", "--requests", str(requests)]), \
            contextlib.redirect_stdout(out):
        return tool.main(), out.getvalue()


class CheckHandoffTest(unittest.TestCase):
    ANSWERS = [("a", "stop"), ("b", "length"), ("c", "stop")]

    def test_equal_answers_that_were_handed_over_pass(self):
        code, out = run((self.ANSWERS, 0), (self.ANSWERS, 3))
        self.assertEqual(code, 0)
        self.assertTrue(out.endswith("3 passed, 0 failed\n"))

    def test_another_answer_fails_and_is_shown(self):
        other = [*self.ANSWERS[:2], ("d", "stop")]
        code, out = run((self.ANSWERS, 0), (other, 3))
        self.assertEqual(code, 1)
        self.assertIn("request 2", out)
        self.assertTrue(out.endswith("2 passed, 1 failed\n"))

    def test_another_finish_reason_fails(self):
        other = [("a", "length"), *self.ANSWERS[1:]]
        self.assertEqual(run((self.ANSWERS, 0), (other, 3))[0], 1)

    def test_prompts_that_were_not_handed_over_show_nothing(self):
        code, out = run((self.ANSWERS, 0), (self.ANSWERS, 2))
        self.assertEqual(code, 1)
        self.assertIn("2 of 3", out)

    def test_requests_differ_and_are_the_same_again(self):
        requests = [tool.request_of(i) for i in range(32)]
        self.assertEqual(requests, [tool.request_of(i) for i in range(32)])
        prompts = {request["prompt"] for request in requests}
        self.assertGreater(len(prompts), 24)


if __name__ == "__main__":
    unittest.main()
