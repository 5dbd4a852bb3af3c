"""make sass-stepNN: what the compiler made of a step for a GPU: registers, spills, and what its main loop consists of.

    python3 common/sass.py build/cuda-sm_90/obj/NAME.cuda.o

Has make compile that object (BACKEND=cuda; no GPU is needed) and reads the listing of its machine code (SASS).  The main
loop of a kernel is its longest loop with tensor-core instructions; without any, its longest.  "each turn" counts what
every turn of the loop executes, "some turns" what a branch can skip.  Spilled bytes are what a thread of the whole kernel
stores in local memory.  Shared memory is what the compiler knows of (on sm_90 1024 bytes of the system's); what the launch
asks for comes on top.

Needs nvcc and the cuobjdump of the CUDA Toolkit.  Exit code: 2 without one of them, or without a path.
"""
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"HMMA": "mma", "LDSM": "ldmatrix", "LDGSTS": "cp.async", "MUFU": "exp2", "FFMA": "", "FADD": "", "FMUL": "",
         "FMNMX": "maximum", "SHFL": "shuffle", "BAR": "barrier", "STL": "spill", "LDL": "refill"}
Instruction = namedtuple("Instruction", "address predicate name operands")


def tools():
    """(nvcc, cuobjdump); a tool that is not there is None."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    beside = nvcc and shutil.which(str(Path(shutil.which(nvcc) or nvcc).resolve().parent / "cuobjdump"))
    return nvcc, beside or shutil.which("cuobjdump")


def kernel_name(mangled):
    """flash_fwd of _Z9flash_fwd15AttentionParams"""
    found = re.match(r"_Z(\d+)(\w+)", mangled)
    return found.group(2)[:int(found.group(1))] if found else mangled


def functions(listing):
    """{kernel: [Instruction]} of the output of cuobjdump -sass"""
    found = {}
    for part in re.split(r"^\s*Function : ", listing, flags=re.M)[1:]:
        lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/ +(@!?U?P\w+ +)?([A-Z]\w*[\w.]*)([^;]*);", part, flags=re.M)
        found[kernel_name(part.split()[0])] = [Instruction(int(address, 16), predicate.strip(), name, operands.strip())
                                               for address, predicate, name, operands in lines]
    return found


def resources(usage):
    """{kernel: {"REG": registers, "SHARED": bytes, ...}} of the output of cuobjdump -res-usage"""
    return {kernel_name(name): {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            for name, line in re.findall(r"Function (\S+):\n(.*)", usage)}


def successors(code):
    """For each instruction, by its index: the instructions that may come after it."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    after = []
    for i, (_, predicate, name, operands) in enumerate(code):
        kind, *options = name.split(".")
        target = re.search(r"0x([0-9a-f]+)$", operands)
        to = [index[int(target.group(1), 16)]] if kind == "BRA" and target else []
        always = not predicate and not {"DIV", "CONV"} & set(options) and "," not in operands
        if not (always and kind in ("BRA", "EXIT", "RET")) and i + 1 < len(code):
            to.append(i + 1)
        after.append(to)
    return after


def reach(after, start, without=None):
    """What can be reached from start without passing through one instruction."""
    seen, todo = set(), [start]
    while todo:
        i = todo.pop()
        if i != without and i not in seen:
            seen.add(i)
            todo += after[i]
    return seen


def loops(code):
    """[(first instruction, last instructions, all instructions)] of each loop, by index"""
    after = successors(code)
    before, back = [[] for _ in code], {}
    for i, to in enumerate(after):
        for j in to:
            before[j].append(i)
    for end in sorted(reach(after, 0)):
        for head in after[end]:
            if head <= end and end not in reach(after, 0, without=head):  # every way to end comes past head
                back.setdefault(head, []).append(end)
    return [(head, ends, {head}.union(*(reach(before, end, without=head) for end in ends))) for head, ends in back.items()]


def each_turn(code, head, ends, body):
    """The instructions of a loop without which no way leads from its head back to it."""
    inside = [[j for j in to if j in body and j != head] for to in successors(code)]
    return {i for i in body if not reach(inside, head, without=i) & (set(ends) - {i})}


def kind(instruction):
    name = instruction.name.split(".")[0].rstrip("23")  # FMNMX3 takes three
    return name if name in KINDS else "others"


def main_loop(code):
    """(Counter of each turn, Counter of some turns), or None for a kernel without a loop"""
    found = loops(code)
    tensor = [loop for loop in found if any(kind(code[i]) == "HMMA" for i in loop[2])]
    if not found:
        return None
    head, ends, body = max(tensor or found, key=lambda loop: len(loop[2]))
    each = each_turn(code, head, ends, body)
    return Counter(kind(code[i]) for i in each), Counter(kind(code[i]) for i in body - each)


def spilled(code):
    """Bytes: STL stores 4, STL.64 and STL.128 more."""
    widths = [re.fullmatch(r"STL(?:\.(\d+))?", instruction.name) for instruction in code]
    return sum(int(width.group(1) or 32) // 8 for width in widths if width)


def table(kernel, code, used):
    """The lines of a kernel."""
    lines = [f"{kernel}: {used['REG']} registers, {spilled(code)} bytes spilled, {used['SHARED']} bytes of shared memory"]
    counts = main_loop(code)
    if not counts:
        return lines + ["  no loop"]
    lines.append("  main loop        each turn  some turns")
    for name in (name for name in (*KINDS, "others") if counts[0][name] or counts[1][name]):
        lines.append(f"  {name:7}{KINDS.get(name, ''):9}{counts[0][name]:10}{counts[1][name]:12}")
    return lines + [f"  {'total':16}{sum(counts[0].values()):10}{sum(counts[1].values()):12}"]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    path, (nvcc, cuobjdump) = Path(sys.argv[1]), tools()
    for name, tool in ("nvcc", nvcc), ("cuobjdump", cuobjdump):
        if not tool:
            print(f"sass: no {name} on the PATH or beside nvcc: it is part of the CUDA Toolkit", file=sys.stderr)
            return 2
    arch = path.parts[1].partition("-")[2] or "native" if path.parts[0] == "build" else ""
    if path.parts[0] == "build":
        done = subprocess.run([os.environ.get("MAKE", "make"), "-s", "BACKEND=cuda", f"ARCH={arch}", path], cwd=ROOT)
        if done.returncode:
            return done.returncode
    version = re.search(r"release ([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    listing, usage = (subprocess.run([cuobjdump, option, path], cwd=ROOT, check=True, capture_output=True, text=True).stdout
                      for option in ("-sass", "-res-usage"))
    print(f"{path.name.partition('.')[0]}  {arch}  CUDA {version.group(1)}")
    used = resources(usage)
    for kernel, code in functions(listing).items():
        print("\n".join(table(kernel, code, used[kernel])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
