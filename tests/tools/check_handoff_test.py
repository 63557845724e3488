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


def run(one, two, requests=3, long_prompts=0):
    """Its exit code and output, when the two systems answer so."""
    out = io.StringIO()
    with mock.patch.object(tool, "answers_of", side_effect=[one, two]), \
            mock.patch.object(sys, "argv",
                              ["check_handoff", "--requests", str(requests),
                               "--long-prompts", str(long_prompts)]), \
            contextlib.redirect_stdout(out):
        return tool.main(), out.getvalue()


def short(answers, handed_over):
    return tool.Answers(answers, [], handed_over)


def long_answers(ttfts, exposed=0, kv_bytes=0, tokens=(7, 8)):
    return [tool.LongAnswer(list(tokens), ttft=ttft, exposed=exposed,
                            to_run=exposed + 1, kv_bytes=kv_bytes)
            for ttft in ttfts]


# Two responses, the second of which ends the answer.
GENERATED = """\
{"token_ids":[5],"text":"a"}
{"token_ids":[6,7],"text":"b","timing":{"ttft_seconds":0.05,\
"kv_transfer_exposed_seconds":0.0005,"decode_queue_seconds":0.0002,\
"kv_transfer_seconds":0.04,"kv_transfer_bytes":"268435456"}}
"""


class CheckHandoffTest(unittest.TestCase):
    ANSWERS = [("a", "stop"), ("b", "length"), ("c", "stop")]

    def test_equal_answers_that_were_handed_over_pass(self):
        code, out = run(short(self.ANSWERS, 0), short(self.ANSWERS, 3))
        self.assertEqual(code, 0)
        self.assertTrue(out.endswith("3 passed, 0 failed\n"))

    def test_another_answer_fails_and_is_shown(self):
        other = [*self.ANSWERS[:2], ("d", "stop")]
        code, out = run(short(self.ANSWERS, 0), short(other, 3))
        self.assertEqual(code, 1)
        self.assertIn("request 2", out)
        self.assertTrue(out.endswith("2 passed, 1 failed\n"))

    def test_another_finish_reason_fails(self):
        other = [("a", "length"), *self.ANSWERS[1:]]
        self.assertEqual(run(short(self.ANSWERS, 0), short(other, 3))[0], 1)

    def test_prompts_that_were_not_handed_over_show_nothing(self):
        code, out = run(short(self.ANSWERS, 0), short(self.ANSWERS, 2))
        self.assertEqual(code, 1)
        self.assertIn("2 of 3", out)

    def test_requests_differ_and_are_the_same_again(self):
        requests = [tool.request_of(i) for i in range(32)]
        self.assertEqual(requests, [tool.request_of(i) for i in range(32)])
        prompts = {request["prompt"] for request in requests}
        self.assertGreater(len(prompts), 24)

    def test_medians_of_long_prompts_without_the_first(self):
        one = tool.Answers(self.ANSWERS, long_answers([90, 40, 60, 50]), 0)
        two = tool.Answers(self.ANSWERS,
                           long_answers([99, 51, 50, 40], 0.8, 268435456), 7)
        code, out = run(one, two, long_prompts=4)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"one worker:\n  first +TTFT +90\.00 ms\n"
                              r"  others +TTFT +50\.00 ms\n")
        first, others = out.split("two pools:\n")[1].splitlines()[:2]
        self.assertRegex(first, r" 99\.00 ms .* 268\.4 MB .* 0\.80 ms = +0\.81 %")
        self.assertRegex(others, r" 50\.00 ms .* exposed +0\.80 ms = +1\.60 % "
                                 r".* 1\.80 ms = +3\.60 %")
        self.assertTrue(out.endswith("7 passed, 0 failed\n"))

    def test_other_tokens_after_a_long_prompt_fail(self):
        one = tool.Answers(self.ANSWERS, long_answers([40]), 0)
        two = tool.Answers(self.ANSWERS, long_answers([40], tokens=(7, 9)), 4)
        code, out = run(one, two, long_prompts=1)
        self.assertEqual(code, 1)
        self.assertIn("long prompt 0", out)
        self.assertTrue(out.endswith("3 passed, 1 failed\n"))

    def test_reads_what_generate_writes(self):
        answer = tool.read_long_answer(GENERATED)
        self.assertEqual(answer.tokens, [5, 6, 7])
        self.assertAlmostEqual(answer.ttft, 50)
        self.assertAlmostEqual(answer.exposed, 0.5)
        self.assertAlmostEqual(answer.to_run, 0.7)
        self.assertAlmostEqual(answer.transfer, 40)
        self.assertEqual(answer.kv_bytes, 268435456)
        with self.assertRaises(tool.Failure):
            tool.read_long_answer('{"token_ids":[5]}\n')

    def test_long_prompts_begin_differently(self):
        prompts = [tool.prompt_of(i, 2048) for i in range(64)]
        self.assertEqual(len({prompt[0] for prompt in prompts}), 64)
        self.assertTrue(all(1 <= t <= 251 for p in prompts for t in p))


if __name__ == "__main__":
    unittest.main()
