"""Tests tools/measure_interference with made-up systems and programs."""

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
        "measure_interference", str(ROOT / "tools" / "measure_interference"))
    spec = importlib.util.spec_from_loader("measure_interference", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
tool = load_tool()

METRICS = """# TYPE baton_worker_usable gauge
baton_worker_usable{peer="a",peer_role="prefill"} 1
baton_worker_usable{peer="b",peer_role="decode"} 1
baton_worker_usable_else{peer="b"} 7
baton_worker_pairs{role="router"} 1
baton_disagg_decision_total{decision="decode-only",reason="x"} 3
baton_disagg_decision_total{decision="prefill-decode",reason="x"} 2
baton_disagg_decision_total{decision="prefill-decode",reason="y"} 4
"""


class MetricTest(unittest.TestCase):
    def test_sums_over_labels(self):
        self.assertEqual(tool.metric(METRICS, "baton_worker_usable"), 2)
        self.assertEqual(tool.metric(METRICS, "baton_worker_pairs"), 1)
        self.assertEqual(tool.metric(METRICS, "baton_disagg_decision_total",
                                     'decision="prefill-decode"'), 6)
        self.assertEqual(tool.metric(METRICS, "none_of_that_name"), 0)


def one_round(alone, with_prompts):
    return {"alone": {"itl_p50": 1, "itl_p99": alone, "itl_max": 9},
            "prompts": {"itl_p50": 2, "itl_p99": with_prompts, "itl_max": 99,
                        "prompts": 6, "prompt_ttft_p50": 500}}


class MadeUpSystem:
    def __init__(self, name, factors):
        self.name, self.factors = name, list(factors)
        self.order = []

    @contextlib.contextmanager
    def running(self, programs):
        yield self


class RunTest(unittest.TestCase):
    def run_tool(self, systems, *flags):
        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "out")
            turns = []

            def load(args, system, seconds, with_prompts, seed):
                if seconds == 1:  # the warm-up
                    turns.append(system.name)
                    return {}
                if not with_prompts:
                    return one_round(10, 0)["alone"]
                return one_round(0, 10 * system.factors.pop(0))["prompts"]

            with mock.patch.object(tool, "make_systems", return_value=systems), \
                    mock.patch.object(tool, "load", side_effect=load), \
                    contextlib.redirect_stdout(io.StringIO()) as printed, \
                    contextlib.redirect_stderr(io.StringIO()):
                status = tool.main(["--model", "/tmp/a-model", "--out", out,
                                    "--warm-up", "1", "--seconds", "30",
                                    *flags])
            self.assertEqual(status, 0)
            with open(out + ".json", encoding="utf-8") as file:
                return printed.getvalue(), json.load(file), turns

    def test_medians_in_turns(self):
        table, results, turns = self.run_tool(
            [MadeUpSystem("a", [1.1, 1.3, 1.2]), MadeUpSystem("b", [9, 5, 7])],
            "--rounds", "3")
        self.assertEqual(turns, ["a", "b", "b", "a", "a", "b"])
        self.assertIn("| a | 1.0 | 2.0 | 10.0 | 12.0 | **1.20** | 99 | 12 | 500 |",
                      table)
        self.assertIn("**7.00**", table)
        self.assertIn("a-model", table)
        self.assertEqual(len(results["systems"]["b"]), 3)


def comma(cpus):
    return ",".join(str(cpu) for cpu in sorted(cpus))


class ProgramsTest(unittest.TestCase):
    def script(self, directory, body):
        path = os.path.join(directory, "program")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{body}")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def test_reads_what_a_program_says_when_ready_and_stops_it(self):
        with tempfile.TemporaryDirectory() as directory:
            path = self.script(directory, """
import os, signal, sys
fd = int(sys.argv[sys.argv.index("--ready-fd") + 1])
os.write(fd, b'{"grpc": ')
os.write(fd, b'"1.2.3.4:5"}\\n')
signal.pause()
""")
            with tool.Programs(directory) as programs:
                cpus = os.sched_getaffinity(0)
                said = programs.start_baton(path, "x", [], cpus)
                process = programs.running[0][1]
                self.assertIsNone(process.poll())
            self.assertEqual(said, {"grpc": "1.2.3.4:5"})
            self.assertIsNotNone(process.poll())

    def test_a_program_that_ends_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            path = self.script(directory, "raise SystemExit(3)")
            with tool.Programs(directory) as programs:
                with self.assertRaisesRegex(tool.Failure, "x ended"):
                    programs.start_baton(path, "x", [],
                                         os.sched_getaffinity(0))

    def test_measures_until_it_is_interrupted(self):
        summary = {"itl_ms": {"p50": 1, "p99": 2, "max": 3},
                   "ttft_ms": {"p50": 70}, "outcomes": {"finished": 5}}
        with tempfile.TemporaryDirectory() as directory:
            path = self.script(directory, f"""
import json, signal, sys
# Waits for it from before the file is there: none is lost.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
open({directory!r} + "/" + sys.argv[sys.argv.index("--seed") + 1], "w").close()
signal.sigwait({{signal.SIGINT}})
print(json.dumps({{"summary": {summary!r}}}), flush=True)
sys.exit(130)
""")
            os.rename(path, os.path.join(directory, "baton"))
            args = tool.parse_args(["--model", "m", "--out", "o", "--bin",
                                    directory, "--front-cpus", comma(
                                        os.sched_getaffinity(0))])

            def both_run(_):
                while not all(os.path.exists(os.path.join(directory, seed))
                              for seed in ("7", "1007")):
                    os.sched_yield()

            with mock.patch.object(tool.time, "sleep", side_effect=both_run):
                result = tool.load(args, "http://x", 1, True, 7)
        self.assertEqual(result, {"itl_p50": 1, "itl_p99": 2, "itl_max": 3,
                                  "prompts": 5, "prompt_ttft_p50": 70})


class FlagsTest(unittest.TestCase):
    def test_llama_server_needs_a_name_and_a_model(self):
        for flags in (["--llama-server", "path", "--gguf", "g"],
                      ["--llama-server", "a=path"], ["--cpus", "0"]):
            with self.assertRaises(SystemExit), \
                    contextlib.redirect_stderr(io.StringIO()):
                tool.parse_args(["--model", "m", "--out", "o", *flags])

    def test_systems(self):
        args = tool.parse_args(["--model", "m", "--out", "o", "--cpus", "3,4,5",
                                "--llama-server", "lama=/x", "--gguf", "g"])
        self.assertEqual([system.name for system in tool.make_systems(args)],
                         ["disaggregated", "mixed", "mixed, budget", "lama"])
        workers = tool.make_systems(args)[0].workers
        self.assertEqual([cpus for _, cpus, _ in workers], [{3}, {4, 5}])


if __name__ == "__main__":
    unittest.main()
