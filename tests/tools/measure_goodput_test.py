"""Tests tools/measure_goodput with made-up systems and programs."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))


def load_tool():
    loader = importlib.machinery.SourceFileLoader(
        "measure_goodput", str(ROOT / "tools" / "measure_goodput"))
    spec = importlib.util.spec_from_loader("measure_goodput", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


tool = load_tool()


class MadeUpSystem:
    def __init__(self, name):
        self.name = name

    @contextlib.contextmanager
    def running(self, programs):
        yield {"http": self.name, "grpc": self.name}


def flag(command, name):
    return command[command.index(name) + 1]


class RunTest(unittest.TestCase):
    # Requests per second that each carries; what is more misses its targets.
    CARRIES = {"aggregated": 2.0, "disaggregated": 3.0, "default": 3.6,
               "dual": 4.5}

    def call(self, args, command):
        rate = float(flag(command, "--rate"))
        if command[0] == "plan":
            name = "dual" if "--dual" in command else flag(command, "--mode")
            goodput = min(rate, self.CARRIES[name])
            if self.costs_of[flag(command, "--profile")] == "run":
                goodput *= 0.95
            return {"splits": [{"result": {
                "goodput_per_second": goodput, "attainment": goodput / rate,
                "ttft_ms": {"p50": 10}, "tpot_ms": {"p50": 5}}}]}
        raise AssertionError(command)

    def load_and_costs(self, args, router, flags, seconds, profile):
        rate = float(flag(flags, "--rate"))
        what = "warm-up" if seconds == args.warm_up else "run"
        self.costs_of[str(profile)] = what
        if what == "warm-up":
            self.warm_ups.append(rate)
            return None
        name = router["http"]
        self.calls.append((name, rate))
        goodput = 0.9 * min(rate, self.CARRIES[name])
        return {"goodput_per_second": goodput, "attainment": goodput / rate,
                "offered": 7, "outcomes": {"finished": 7},
                "ttft_ms": {"p50": 20}, "tpot_ms": {"p50": 6}}

    def test_finds_loads_and_compares(self):
        self.calls, self.warm_ups, self.costs_of = [], [], {}
        systems = {name: MadeUpSystem(name) for name in tool.SYSTEMS}
        with tempfile.TemporaryDirectory() as directory, \
                mock.patch.object(tool, "make_systems", return_value=systems), \
                mock.patch.object(tool, "call", side_effect=self.call), \
                mock.patch.object(tool, "load_and_costs",
                                  side_effect=self.load_and_costs), \
                mock.patch.object(tool, "num_prefill", return_value=2), \
                mock.patch.object(tool, "local_share", return_value=0.25), \
                contextlib.redirect_stdout(io.StringIO()) as printed, \
                contextlib.redirect_stderr(io.StringIO()):
            out = os.path.join(directory, "out")
            status = tool.main(["--model", "/tmp/a-model", "--out", out,
                                "--loads", "0.5,1.5", "--mixes", "short chat",
                                "--rounds", "2"])
            with open(out + ".json", encoding="utf-8") as file:
                results = json.load(file)
        self.assertEqual(status, 0)
        # 0.9 of its requests are in time at a rate of 3.0 / 0.9.
        rate = results["rates"]["short chat"]
        self.assertLess(abs(rate / (3.0 / 0.9) - 1), 0.06)
        self.assertEqual([name for name, _ in self.calls], [
            "aggregated", "aggregated", "disaggregated", "disaggregated",
            "default", "default", "dual", "dual", "dual", "dual", "default",
            "default", "disaggregated", "disaggregated", "aggregated",
            "aggregated"])
        # Twice before load 1.0 was known, then at it, each system in each round.
        self.assertEqual([f"{at:.6g}" for at in self.warm_ups],
                         2 * ["1"] + 8 * [f"{rate:.6g}"])
        text = printed.getvalue()
        self.assertIn("| short chat | 1.5 | "
                      f"{1.5 * rate:.2f} | 1.80 | 2.70 | 3.24 | 4.05 "
                      "| **1.20** | **1.50** |", text)
        # From what steps cost meanwhile, and from the warm-up.
        self.assertIn(f"| short chat | 1.5 | default | 3.42 | 3.24 | **1.06** "
                      "| 10 | 20 | 5.0 | 6.0 | 3.60 | 1.11 |", text)

    def test_roles_are_those_that_the_router_knows(self):
        metrics = ('baton_worker_standby{peer="dual-0",peer_role="decode"} 1\n'
                   'baton_worker_standby{peer="dual-0",peer_role="prefill"} 0\n'
                   'baton_worker_standby{peer="dual-1",peer_role="decode"} 0\n'
                   'baton_worker_standby{peer="dual-1",peer_role="prefill"} 1\n')
        with mock.patch.object(tool, "get", return_value=metrics):
            self.assertEqual(tool.num_prefill({"http": "somewhere"}), 1)

    def test_rates_that_are_given_need_no_search(self):
        args = tool.parse_args(["--model", "m", "--out", "o", "--mixes",
                                "long prompts", "--rates",
                                '{"long prompts": 2}'])
        self.assertEqual(args.rates, {"long prompts": 2})


class FlagsTest(unittest.TestCase):
    def parse(self, *flags):
        return tool.parse_args(["--model", "m", "--out", "o", *flags])

    def test_mixes_of_traces_need_the_traces(self):
        self.assertEqual(self.parse().mixes, ["short chat", "long prompts"])
        self.assertEqual(self.parse("--traces", "t").mixes, list(tool.MIXES))

    def test_refuses(self):
        for flags in (["--mixes", "none of that name"], ["--cpus", "0"],
                      ["--mixes", "azure conversation"],
                      ["--rates", '{"short chat": 1}']):
            with self.subTest(flags), self.assertRaises(SystemExit), \
                    contextlib.redirect_stderr(io.StringIO()):
                self.parse(*flags)

    def test_systems(self):
        systems = tool.make_systems(self.parse("--cpus", "3,5"))
        self.assertEqual(tuple(systems), tool.SYSTEMS)
        self.assertEqual([(kind, cpus) for kind, cpus, _
                          in systems["default"].workers],
                         [("prefill", {3}), ("decode", {5})])
        self.assertIn("--local-prefill", systems["disaggregated"].router_flags)

    def test_a_plan_and_a_run_get_the_same_requests(self):
        args = self.parse("--traces", "/t", "--seconds", "10")
        flags = tool.workload_flags(args, "azure conversation", 2.5, 7)
        self.assertEqual(flag(flags, "--max-requests"), "25")
        self.assertEqual(flag(flags, "--trace"), "/t/azure_2023_conversation.csv")
        self.assertEqual(flag(flags, "--seed"), "7")


if __name__ == "__main__":
    unittest.main()
