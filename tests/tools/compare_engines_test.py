"""Tests tools/compare_engines with made-up engines."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_tool():
    loader = importlib.machinery.SourceFileLoader(
        "compare_engines", str(ROOT / "tools" / "compare_engines"))
    spec = importlib.util.spec_from_loader("compare_engines", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
tool = load_tool()

BATON = {"rows": [
    {"test": "pp512", "tokens": 512, "context": 0, "batch": 1,
     "tokens_per_second": 900.0},
    {"test": "tg128", "tokens": 128, "context": 0, "batch": 1,
     "tokens_per_second": 100.0},
    {"test": "tg64@b4@d128", "tokens": 64, "context": 128, "batch": 4,
     "tokens_per_second": 300.0},
    {"test": "pp9", "tokens": 9, "context": 0, "batch": 1, "skipped": "why"}]}
LLAMA_BENCH = """build,n_prompt,n_gen,avg_ts
WARNING: something, else!
"x","512","0","450.0"
"x","0","128","120.0"
"""
BATCHED = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |
|-------|--------|------|--------|----------|----------|----------|----------|
|   128 |     64 |    4 |    768 |    1.979 |   258.70 |    1.000 |   256.00 |
"""


class ParseTest(unittest.TestCase):
    def test_baton(self):
        self.assertEqual(tool.parse_baton(json.dumps(BATON)),
                         {"pp512": 900.0, "tg128": 100.0, "batch 4": 300.0})

    def test_llama_bench(self):
        self.assertEqual(tool.parse_llama_bench(LLAMA_BENCH),
                         {"pp512": 450.0, "tg128": 120.0})

    def test_batched_bench(self):
        self.assertEqual(tool.parse_batched_bench(BATCHED), {"batch 4": 256.0})
        self.assertEqual(tool.parse_batched_bench("nothing"), {})


class SummaryTest(unittest.TestCase):
    def test_medians_and_ratio(self):
        rounds = [{"baton": {"pp512": x}, "ik": {"pp512": 2 * x}}
                  for x in (10, 30, 20)]
        medians = tool.summarize(rounds)
        self.assertEqual(medians, {"pp512": {"baton": 20, "ik": 40}})
        self.assertEqual(tool.ratio(medians["pp512"]), 0.5)
        self.assertEqual(tool.ratio({"baton": 6, "a": 2, "b": 3}), 2.0)
        self.assertIsNone(tool.ratio({"baton": 6}))
        self.assertIsNone(tool.ratio({"ik": 6}))

    def test_order_of_tests(self):
        names = ["batch 16", "tg128", "pp2048", "batch 4", "pp512"]
        self.assertEqual(
            sorted(names, key=tool.test_order),
            ["pp512", "pp2048", "tg128", "batch 4", "batch 16"])


class CompareTest(unittest.TestCase):
    """Programs that say what they always say."""

    def setUp(self):
        patch = mock.patch.object(tool, "busy_share", return_value=0.0)
        self.busy_share = patch.start()
        self.addCleanup(patch.stop)
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dir = pathlib.Path(self.scratch.name)
        self.baton = self.program("baton", json.dumps(BATON))
        self.program("llama/build/bin/llama-bench", LLAMA_BENCH)
        self.program("llama/build/bin/llama-batched-bench", BATCHED, fd=2)
        (self.dir / "out.bf16.gguf").touch()

    def program(self, name, output, fd=1, status=0):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho x >> '{path}.calls'\n"
                        f"cat >&{fd} <<'END'\n{output}\nEND\nexit {status}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def calls(self, name):
        path = self.dir / (name + ".calls")
        return len(path.read_text().split()) if path.exists() else 0

    def compare(self, *flags):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = tool.main(["--model", str(self.dir), "--baton", self.baton,
                              "--llama-cpp", str(self.dir / "llama"), "--out",
                              str(self.dir / "out"), "--weights", "bf16",
                              "--threads", "1", "--wait-idle", "0", *flags])
        return code, out.getvalue(), err.getvalue()

    def test_tables_and_ratios(self):
        code, out, err = self.compare("--rounds", "2")
        self.assertEqual(code, 0, err)
        self.assertIn("| bf16 | 1 | pp512 | 900.0 | 450.0 | **2.00** | 2 |", out)
        self.assertIn("| bf16 | 1 | tg128 | 100.0 | 120.0 | **0.83** | 2 |", out)
        self.assertIn("| bf16 | 1 | batch 4 | 300.0 | 256.0 | **1.17** | 2 |",
                      out)
        self.assertEqual((self.dir / "out.md").read_text(), out)

    def test_goes_on_where_it_was_stopped(self):
        self.assertEqual(self.compare("--rounds", "1", "--only", "single")[0], 0)
        self.assertEqual(self.calls("baton"), 1)
        self.assertEqual(self.compare("--rounds", "2")[0], 0)
        # One more of the first section, two of the second.
        self.assertEqual(self.calls("baton"), 4)
        self.assertEqual(self.compare("--rounds", "2")[0], 0)
        self.assertEqual(self.calls("baton"), 4)

    def test_waits_for_an_idle_machine_and_says_when_it_is_not(self):
        self.busy_share.side_effect = [0.5, 0.3, 0.05] + 9 * [0.0]
        code, out, err = self.compare("--rounds", "1", "--wait-idle", "60")
        self.assertEqual(code, 0, err)
        self.assertNotIn("others use", err)
        self.assertIn("| 1 | 5% |", out)
        self.busy_share.side_effect = None
        self.busy_share.return_value = 0.5
        code, out, err = self.compare("--rounds", "2")
        self.assertIn("others use 50% of the CPUs", err)
        self.assertIn("| 2 | 50% |", out)

    def test_measures_disturbed_rounds_again(self):
        single = ("--rounds", "2", "--only", "single")
        self.busy_share.side_effect = [0.5, 0.0, 0.0, 0.0]
        self.assertIn("| 2 | 50% |", self.compare(*single)[1])
        self.busy_share.side_effect = None
        code, out, err = self.compare(*single, "--redo-busy", "0.1")
        self.assertEqual(code, 0, err)
        self.assertIn("| 2 | 0% |", out)
        self.assertEqual(self.calls("baton"), 3)

    def test_ends_in_time(self):
        code, _, err = self.compare("--minutes", "0")
        self.assertEqual(code, 0)
        self.assertIn("--minutes 0.0 are over", err)
        self.assertEqual(self.calls("baton"), 0)

    def test_says_what_failed(self):
        self.program("llama/build/bin/llama-bench", "no", status=3)
        code, _, err = self.compare()
        self.assertEqual(code, 1)
        self.assertIn("status 3", err)
        self.program("llama/build/bin/llama-bench", "nothing to see")
        self.assertIn("no results", self.compare()[2])
        os.remove(self.dir / "llama/build/bin/llama-bench")
        self.assertIn("llama-bench", self.compare()[2])
        self.assertIn("--only x", self.compare("--only", "x")[2])

    def test_does_not_mix_comparisons(self):
        self.assertEqual(self.compare("--rounds", "1")[0], 0)
        code, _, err = self.compare("--pp", "7")
        self.assertEqual(code, 1)
        self.assertIn("another comparison", err)


if __name__ == "__main__":
    unittest.main()
