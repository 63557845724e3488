#!/usr/bin/env python3
"""Looks at the machine code for Hopper that a build of the kernels has.

    machine_code_test.py LIBRARY    engine/cuda/libbaton_engine_cuda_device.a

Tensor cores read registers of products that were started (HGMMA) until a wait
for them (WARPGROUP.DEPBAR) ends. ptxas up to CUDA 13.2 lets such a register be
loaded with something else where its word had only been copied there, which PTX
forbids and no compiler says (triton-lang/triton issues 9433, 11781). Every path
through every kernel is followed here, and no instruction may write to what a
product that may still run reads. Kernels whose warps share registers out must
do so (USETMAXREG), and begin with as many as they share out: those that ask for
more would wait for ever. Products must not be waited for one by one. ptxas leaves
the first out and puts the last in with a mere remark.

Blocks of a cluster read each other's memory, and a block may end once all have
arrived at the cluster's last barrier. So a block must have what it asked for when
it arrives: ptxas waits for a load where its word is used, which may be never.

How instructions lie in their 16 bytes is not documented; what is used of it is
below, and a fault of each kind is tried: it must be found.
"""

import re
import struct
import sys
from collections import namedtuple

CUDA_MACHINE = 190
PRODUCT = 0xDF0  # HGMMA
WAIT = 0x9C5  # with 0x8000: WARPGROUP.DEPBAR
SET_REGISTERS = 0x9C8  # USETMAXREG
# Of a thread, of three groups of warps: a third of 240 + 240 + 24, or 192 + 192 +
# 120 (matmul_group.h, attention_group.h).
SHARED_REGISTERS = 168
REGISTER_COUNTS = (4, 0x2F)  # in .nv.info: EIATTR_REGCOUNT
BRANCH = 0x947
LOAD = 0x980  # LD, of another block's memory in kernels with clusters
ARRIVE = 0x9C7  # UCGABAR_ARV
EXIT = 0x94D
# Calls (of divisions), returns and jumps to where registers say, which nothing
# here follows: not while a product may run.
NOT_FOLLOWED = {0x343, 0x344, 0x943, 0x944, 0x949, 0x94A, 0x94C, 0x950}
ALWAYS = 7  # the predicate
NO_REGISTER = 255
LOADS = (0x980, 0x981, 0x984, 0xB82)  # LD, LDG, LDS, LDC: as wide as they say
PAIRS = (0x825, 0x225, 0x425, 0xC25)  # IMAD.WIDE
# Stores, barriers, branches, predicates, uniform registers: no register.
WRITES_NONE = {
    0x9C5, 0x947, 0x948, 0x945, 0x941, 0x946, 0x20C, 0x80C, 0xC0C, 0x918, 0x91B,
    0x988, 0x986, 0x9A7, 0x2CA, 0x290, 0x291, 0x890, 0x882, 0x899, 0x892, 0x886,
    0x246, 0x248, 0x848, 0xB1D, 0x94D, 0x5A7, 0x3C6, 0x9C7, 0xDC7, 0x98F, 0x9C8,
    0x3BA, 0x992, 0x387, 0xD82, 0xC8C, 0x28C, 0x88C, 0x287, 0x887, 0x296, 0x896,
    0xAB9, 0x2A4, 0x82F,
}  # fmt: skip

Instruction = namedtuple("Instruction", "op predicate to a word high")


def instructions(code):
    for at in range(0, len(code), 16):
        low, high = struct.unpack_from("<QQ", code, at)
        yield Instruction(
            low & 0xFFF, low >> 12 & 15, low >> 16 & 255, low >> 24 & 255,
            low >> 32, high,
        )  # fmt: skip


def register_counts(info):
    """Registers that kernels begin with, by the number of their symbol."""
    counts, at = {}, 0
    while at + 4 <= len(info):
        form, what, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if (form, what) == REGISTER_COUNTS:
            symbol, count = struct.unpack_from("<II", info, at)
            counts[symbol] = count
        at += size if form == 4 else 0
    return counts


def kernels(library):
    """Yields the names of kernels in the ELF images of a file, their code, and how
    many registers each begins with (None: not found)."""
    at = library.find(b"\x7fELF")
    while at >= 0:
        image = memoryview(library)[at:]
        if struct.unpack_from("<H", image, 18)[0] == CUDA_MACHINE:
            (table,) = struct.unpack_from("<Q", image, 0x28)
            count, names = struct.unpack_from("<HH", image, 0x3C)
            sections = [
                struct.unpack_from("<IIQQQQII", image, table + 64 * i)
                for i in range(count)
            ]
            text = bytes(image[sections[names][4] :][: sections[names][5]])
            parts, registers = [], {}
            for name, _, _, _, offset, size, _, symbol in sections:
                label = text[name : text.index(b"\0", name)].decode()
                part = bytes(image[offset : offset + size])
                if label == ".nv.info":
                    registers = register_counts(part)
                elif label.startswith(".text."):
                    parts.append((label[len(".text.") :], part, symbol))
            for label, part, symbol in parts:
                yield label, part, registers.get(symbol)
        at = library.find(b"\x7fELF", at + 4)


def written(i):
    if i.to == NO_REGISTER or i.op == PRODUCT or i.op in WRITES_NONE:
        return range(0)
    width = 1
    if i.op in LOADS:
        width = {4: 1, 5: 2, 6: 4}.get(i.high >> 9 & 7, 1)
    elif i.op in PAIRS:
        width = 2
    return range(i.to, i.to + width)


def always(i):
    """Whether a branch is always taken: not where lanes may part (BRA.DIV)."""
    return i.predicate == ALWAYS and not i.word & 3


def barrier(i):
    """The one of six at which the end of a load is reported; 7: none."""
    return i.high >> 46 & 7


def awaited(i):
    """Those that an instruction waits for, as a mask."""
    return i.high >> 52 & 63


def target(i, at):
    distance = (i.word >> 2) << 8 | i.to
    if distance >> 37:
        distance -= 1 << 38
    return at + 1 + distance * 4 // 16


def follow(program, state, step):
    """Goes every path through a program from its beginning, with a state for which
    step(at, instruction, state) gives the one behind."""
    seen = [set() for _ in program]
    todo = [(0, state)]
    while todo:
        at, state = todo.pop()
        if at >= len(program) or state in seen[at]:
            continue
        seen[at].add(state)
        i = program[at]
        state = step(at, i, state)
        if i.op == EXIT and i.predicate == ALWAYS:
            continue
        if i.op == BRANCH:
            todo.append((target(i, at), state))
            if always(i):
                continue
        todo.append((at + 1, state))


def overwritten(code):
    """What writes to registers that a product which may still run reads."""
    found = set()

    # Of products: those before the last wait that may still run, and those
    # since.
    def step(at, i, running):
        older, since = running
        if i.op == PRODUCT:
            return older, since | {(at, i.a)}
        if i.op == WAIT and i.word & 0xFFFF == 0x8000:
            all_but_one = i.high >> 8 & 0xFF == 1
            return since if all_but_one else frozenset(), frozenset()
        # Whatever is called may write to any register.
        anywhere = range(NO_REGISTER) if i.op in NOT_FOLLOWED else ()
        for register in anywhere or written(i):
            for product, a in older | since:
                if a <= register < a + 4 and a != NO_REGISTER:
                    found.add((at * 16, register, product * 16))
        return running

    follow(list(instructions(code)), (frozenset(), frozenset()), step)
    return sorted(found)


def unawaited(code):
    """Loads that may be under way when the block arrives at a cluster's barrier."""
    program = list(instructions(code))
    found = set()

    def step(at, i, pending):
        pending = frozenset(
            load for load in pending if not awaited(i) >> barrier(program[load]) & 1
        )  # fmt: skip
        if i.op == ARRIVE:
            found.update((at * 16, load * 16) for load in pending)
        return pending | {at} if i.op == LOAD else pending

    follow(program, frozenset(), step)
    return sorted(found)


def without_waits(code):
    """The code, with nothing that waits for its last load."""
    program = list(instructions(code))
    load = max(at for at, i in enumerate(program) if i.op == LOAD)
    changed = bytearray(code)
    for at, i in enumerate(program):
        high = i.high & ~(1 << 52 + barrier(program[load]))
        struct.pack_into("<Q", changed, at * 16 + 8, high)
    return bytes(changed)


def with_a_fault(code):
    """The code, with the last register of the first product's operand written
    behind it."""
    program = list(instructions(code))
    product = next(n for n, i in enumerate(program) if i.op == PRODUCT)
    for at in range(product + 1, len(program)):
        i = program[at]
        if i.op == WAIT:
            break
        if len(written(i)) == 1:
            changed = bytearray(code)
            changed[at * 16 + 2] = program[product].a + 3
            return bytes(changed)
    return None


def main():
    with open(sys.argv[1], "rb") as file:
        library = file.read()
    checked = faults = failures = clusters = 0
    for name, code, registers in kernels(library):
        ops = [i.op for i in instructions(code)]
        if LOAD in ops and ARRIVE in ops:
            clusters += 1
            for at, load in unawaited(code)[:5]:
                failures += 1
                print(f"{name}: at {at:#x} a block arrives that has not what it asked "
                      f"for at {load:#x}")  # fmt: skip
            if not unawaited(without_waits(code)):
                failures += 1
                print(f"{name}: a load that nothing waits for was not found")
        if PRODUCT not in ops:
            continue
        checked += 1
        for at, register, product in overwritten(code)[:5]:
            failures += 1
            print(f"{name}: at {at:#x} R{register} is written, which the product "
                  f"at {product:#x} may still read")  # fmt: skip
        shares = "GroupMatmul" in name or re.search("GroupAttentionILi128E", name)
        if shares and ops.count(SET_REGISTERS) != 2:
            failures += 1
            print(f"{name}: registers are not shared out")
        if shares and registers != SHARED_REGISTERS:
            failures += 1
            print(f"{name}: begins with {registers} registers, not "
                  f"{SHARED_REGISTERS}")  # fmt: skip
        waits = sum(i.op == WAIT and i.word & 0xFFFF == 0x8000
                    for i in instructions(code))  # fmt: skip
        if waits > 0.75 * ops.count(PRODUCT):
            failures += 1
            print(f"{name}: {ops.count(PRODUCT)} products have {waits} waits: "
                  "they do not run beside other work")  # fmt: skip
        changed = with_a_fault(code)
        if changed is not None:
            faults += 1
            if not overwritten(changed):
                failures += 1
                print(f"{name}: a register that is written was not found")
    print(f"{checked} kernels with products in flight, {faults} of them with a fault; "
          f"{clusters} whose blocks read each other's memory")  # fmt: skip
    if checked == 0 or faults == 0 or clusters == 0:
        failures += 1
        print("nothing was looked at")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
