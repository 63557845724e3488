#!/usr/bin/env python3
"""Every test of a program is one that some test of ctest runs.

all_tests_run_test.py CTEST BUILD_DIR PROGRAM: where tests are left to others that
run the same with a filter (CMakeLists.txt), none may fall between two of them.
"""

import json
import os
import subprocess
import sys


def listed(command):
    """The tests that a command would run."""
    out = subprocess.run([*command, "--gtest_list_tests"], check=True, text=True,
                         capture_output=True).stdout
    tests, suite = set(), ""
    for line in out.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            tests.add(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return tests


def main():
    ctest, build_dir, program = sys.argv[1:]
    shown = subprocess.run(
        [ctest, "--test-dir", build_dir, "--show-only=json-v1"], check=True,
        text=True, capture_output=True).stdout
    commands = [test["command"] for test in json.loads(shown)["tests"]
                if "command" in test
                and os.path.realpath(test["command"][0])
                == os.path.realpath(program)]
    run = set().union(*map(listed, commands))
    missing = sorted(listed([program]) - run)
    print(f"{len(commands)} commands run {len(run)} tests of {program}")
    if not commands or not run or missing:
        print("run by none:", *missing, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
