"""Tests tools/measure_kv_offload with made-up measurements and a real file."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_tool():
    loader = importlib.machinery.SourceFileLoader(
        "measure_kv_offload", str(ROOT / "tools" / "measure_kv_offload"))
    spec = importlib.util.spec_from_loader("measure_kv_offload", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
tool = load_tool()


def one_round(computed, stored, load_ms):
    loaded = {"ttft_ms": stored, "loads": len(stored), "load_ms": load_ms,
              "tokens_per_second": 1e6}
    return {"computed": {"ttft_ms": computed}, "cached": {"ttft_ms": [1, 1]},
            "stored": loaded, "restarted": loaded, "from the disk": loaded,
            "block_bytes": 32000, "read_page_cache": 8e9, "read_disk": 2e9}


class SummaryTest(unittest.TestCase):
    def test_medians_over_prompts_and_rounds(self):
        rounds = [one_round([100, 110], [10, 11], 5),
                  one_round([120, 130], [12, 13], 7),
                  one_round([90, 500], [9, 50], 6)]
        summary = tool.summed_up(rounds)
        self.assertEqual(summary["computed"]["ttft_ms"], 115)
        self.assertEqual(summary["stored"]["ttft_ms"], 11.5)
        self.assertEqual(summary["stored"]["ratio"], 10)
        self.assertEqual(summary["stored"]["load_ms"], 6)
        # A million tokens a second, of 2000 bytes each.
        self.assertEqual(summary["stored"]["bytes_per_second"], 2e9)
        self.assertNotIn("load_ms", summary["cached"])

    def test_the_table_has_a_row_for_each_way(self):
        setup = {"prompts": 2, "prompt_tokens": 1024, "model": "m",
                 "kv_memory": "96MiB"}
        text = tool.markdown({"setup": setup,
                              "rounds": [one_round([100], [10], 5)]})
        for row in ("| computed | 100 | 1.0 |  |  |",
                    "| stored | 10 | 10.0 | 5.0 | 2.00 |",
                    "| from the disk | 10 | 10.0 | 5.0 | 2.00 |"):
            self.assertIn(row, text)
        self.assertIn("the page cache | | | | 8.00 |", text)

    def test_no_load_has_no_speed(self):
        one = one_round([100], [10], 5)
        one["restarted"] = {"ttft_ms": [100]}
        self.assertNotIn("load_ms", tool.summed_up([one])["restarted"])


class ReadTest(unittest.TestCase):
    def test_reads_a_file_also_when_it_is_in_no_page_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            with open(path, "wb") as file:
                file.write(os.urandom(3 << 20))
            self.assertGreater(
                tool.read_bytes_per_second(path, 1 << 20, 2 << 20), 0)
            tool.drop_from_page_cache(path)
            self.assertGreater(
                tool.read_bytes_per_second(path, 1 << 20, 2 << 20), 0)


class ArgumentTest(unittest.TestCase):
    def test_paths_are_absolute_and_two_cpus_are_needed(self):
        args = tool.parse_args(["--model", "m", "--out", "o"])
        self.assertTrue(os.path.isabs(args.model))
        self.assertEqual(args.front_cpus, [0, 1])
        with self.assertRaises(SystemExit):
            tool.parse_args(["--model", "m", "--out", "o", "--cpus", "0"])


if __name__ == "__main__":
    unittest.main()
