"""Tests tools/failed_tests, with a report of the ctest that there is."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

TESTS = r"""
add_test(passes "/bin/sh" "-c" "echo all is well")
add_test(fails "/bin/sh" "-c" "for i in $(seq 100); do echo line $i; done; echo '<why> & how'; exit 3")
add_test(aborts "/bin/sh" "-c" "echo about to end; kill -ABRT $$")
"""


def run_tool(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "failed_tests", *arguments],
        capture_output=True, text=True, timeout=60, check=False)


class FailedTests(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.directory = pathlib.Path(self.scratch.name) / "dev"
        self.directory.mkdir()

    def report(self, *choice):
        (self.directory / "CTestTestfile.cmake").write_text(TESTS)
        report = self.directory / "ctest.xml"
        subprocess.run(
            [shutil.which("ctest"), "--output-junit", report, *choice],
            cwd=self.directory, capture_output=True, timeout=60, check=False)
        return report

    def test_says_what_failed_and_how_it_ended(self):
        done = run_tool(self.report())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^== dev: fails: .*; it ended with$")
        self.assertRegex(done.stdout, r"(?m)^== dev: aborts: .*; it ended with$")
        self.assertIn("<why> & how", done.stdout)
        self.assertIn("line 100", done.stdout)
        self.assertNotIn("line 1\n", done.stdout)
        self.assertIn("... (41 lines before)", done.stdout)
        self.assertIn("about to end", done.stdout)
        self.assertNotIn("all is well", done.stdout)

    def test_says_nothing_where_nothing_failed(self):
        done = run_tool(self.report("-R", "passes"))
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_names_a_report_that_is_none(self):
        report = self.directory / "ctest.xml"
        report.write_text("<testsuite>")
        done = run_tool(report)
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(report), done.stderr)


if __name__ == "__main__":
    unittest.main()
