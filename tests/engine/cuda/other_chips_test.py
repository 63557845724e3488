#!/usr/bin/env python3
"""The kernels compile for chips that the build is not for.

other_chips_test.py NVCC KERNELS_DIR [FLAG ...]: for each of the chips below that
the toolkit knows, down to machine code and without optimizing, which would take
minutes; attention, of which there are sixty kernels, down to PTX. Chips between
80 and 90 have the text of 80: no kernel asks for them, which is looked at, too.
So has 90 without its own features, which a build has for later chips, that of 100.

All are one file for all chips, as what they include takes the compiler longer
than most of them; in the reverse of a whole build's order (engine/cuda/
CMakeLists.txt), so that one that leans on what others include is found out.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

CHIPS = ("80", "100")
# The same text as others, for another format.
LEFT_OUT = ("matmul_fp8.cu", "matmul_int8.cu")
TO_PTX = ("attention.cu", "latent_attention.cu")


def main():
    nvcc, kernels = sys.argv[1], pathlib.Path(sys.argv[2])
    flags = sys.argv[3:]
    listed = subprocess.run([nvcc, "--list-gpu-arch"], check=True, text=True,
                            capture_output=True).stdout
    known = re.findall(r"compute_(\d+)", listed)
    chips = [chip for chip in CHIPS if chip in known]
    files = [file for file in sorted(kernels.glob("*.cu"))
             if file.name not in LEFT_OUT]
    if not chips or not files:
        print(f"{nvcc} knows {known}; {kernels} has {files}")
        return 1
    asked = set()
    for file in kernels.rglob("*"):
        if file.suffix in (".h", ".cuh", ".cu"):
            asked.update(re.findall(r"__CUDA_ARCH__ *[<>=!]+ *(\d+)",
                                    file.read_text()))
    if asked != {"900"}:
        print(f"kernels ask for chips {sorted(asked)}: add what is between")
        return 1

    with tempfile.TemporaryDirectory() as scratch:
        joined = pathlib.Path(scratch) / "kernels.cu"
        joined.write_text("".join(
            f'#include "{file}"\n' for file in reversed(files)
            if file.name not in TO_PTX))
        codes = [f"-gencode=arch=compute_{chip},code=sm_{chip}" for chip in chips]
        jobs = [["-fatbin", *codes, joined]]
        jobs += [["-ptx", f"-arch=compute_{chip}", file] for chip in chips
                 for file in files if file.name in TO_PTX]
        failed = 0
        for job in jobs:
            run = subprocess.run(
                [nvcc, *flags, "-std=c++17", "-fmad=false", "-Xcicc", "-O0",
                 "-Xptxas", "-O0", "-o", os.devnull, *map(str, job)],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if run.returncode != 0:
                print(f"{' '.join(map(str, job))}:\n{run.stdout}")
                failed += 1
    print(f"{len(files)} files for {', '.join(chips)}: {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
