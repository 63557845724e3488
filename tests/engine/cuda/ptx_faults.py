#!/usr/bin/env python3
"""Leaves out what orders a kernel's threads, one after another: do tests see it?

    ptx_faults.py TEST LIBRARY KERNELS [FILTER]

TEST is a program of tests on the emulated device, with arguments or without,
LIBRARY the one that nvcc's kernels are in, KERNELS a regular expression for
names, FILTER of GoogleTest. Every barrier, wait, arrival, commit and fence that
the tests execute in these kernels is left out once, and the tests are run:
prints those that no test minds. Some may be right: what is waited for already,
or waits that are there for speed, or for chips that are not emulated.
"""

import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
import tempfile

SECONDS = 600


def run(command, **environment):
    """Whether it passes, and the first line that says why not."""
    try:
        done = subprocess.run(command, env={**os.environ, **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, "runs for ever"
    why = [line for line in done.stdout.splitlines()
           if "PTX of" in line or "Failure" in line]
    return done.returncode == 0, why[0] if why else ""


def main():
    if len(sys.argv) not in (4, 5):
        print(__doc__)
        return 2
    command = shlex.split(sys.argv[1])
    if len(sys.argv) > 4:
        command.append(f"--gtest_filter={sys.argv[4]}")
    kernels = re.compile(sys.argv[3])
    environment = {"BATON_PTX": sys.argv[2], "BATON_PTX_RACES": "1"}
    with tempfile.NamedTemporaryFile("r") as executed:
        passes, why = run(command, BATON_PTX_EXECUTED=executed.name,
                          **environment)
        if not passes:
            print(f"fails as it is: {why}")
            return 1
        lines = {}
        for text in executed:
            name, _, _, orders = text.rstrip("\n").split("\t")
            if kernels.search(name):
                lines[name] = orders.split()
    found = left = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in lines:
            faults = {}
            for place in lines[name]:
                line = place.split(":")[0]
                faults[place] = pool.submit(run, command, BATON_PTX_FAULT=line,
                                            **environment)
            for place, fault in faults.items():
                passes, _ = fault.result()
                found += not passes
                left += passes
                if passes:
                    print(f"nobody minds: {place} of {name}", flush=True)
    print(f"{found} of {found + left} faults were found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
