"""The Makefile: what it builds again and what not, what it says, and that every step compiles without a warning.

What builds or writes does so in a copy of the tree."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BACKEND, CC, ROOT, STEPS, make, own_environment

import bench  # common/, on the path since conftest
import sass

on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="the CPU build's files")
KERNELS = [f"{step}/attention.cu" for step in STEPS]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


class Tree:
    """A copy of the sources, without anything built."""
    def __init__(self, folder):
        self.folder = folder
        for name in ("common", *STEPS):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Makefile", "tests/requirements.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)

    def make(self, *words, backend=BACKEND, compiler=CC):
        return subprocess.run(["make", "--no-print-directory", f"BACKEND={backend}", f"CC={compiler}", *words],
                              cwd=self.folder, capture_output=True, text=True, env=own_environment())

    def compiled(self, *words, **settings):
        """The sources that this make compiles; it succeeds."""
        done = self.make(*words, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout + done.stderr
        return re.findall(r" -c (\S+) -o ", done.stdout)

    def times(self, folder="build"):
        return {path: path.stat().st_mtime_ns for path in (self.folder / folder).rglob("*") if path.is_file()}

    def age(self):
        """All files as they were, a minute ago: what is written from here on is newer, whatever the clock's grain."""
        for path, time in self.times(".").items():
            os.utime(path, ns=(time - 60 * 10 ** 9,) * 2)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """All steps, built from clean by four jobs at a time."""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    files = tree.compiled("-j4", "all")
    assert set(KERNELS) < set(files) and "common/main.c" in files
    return tree


# ---- what it says ----

def test_make_alone_prints_help():
    done = make()
    assert done.returncode == 0 and done.stderr == ""
    for word in (*(step[:6] for step in STEPS), "make run", "make test", "make compare", "make clean", "HEAD_DIM=64",
                 f"BACKEND={BACKEND}", "BLOCK_N=64", "DTYPE=f16"):
        assert word in done.stdout
    assert " -c " not in done.stdout


def test_help_names_targets_that_exist(tree):
    """Each is a target: make knows what it would do for it."""
    targets = re.findall(r"^make (\S+)", make().stdout, re.M)
    assert {"stepNN", "run-stepNN", "diff-stepNN", "sass-stepNN", "bug-stepNN", "run", "compare", "test",
            "clean"} <= set(targets)
    for target in targets:
        done = tree.make("--dry-run", target.replace("stepNN", "step02"))
        assert done.returncode == 0, (target, done.stderr)


@pytest.mark.parametrize("name, value, rule", [
    ("BACKEND", "tpu", "cpu or cuda"), ("BACKEND", "", "cpu or cuda"), ("DTYPE", "fp16", "f16 or bf16"),
    ("DTYPE", "f32", "f16 or bf16"), ("HEAD_DIM", "80", "32, 64, 96, 128, 192 or 256"), ("HEAD_DIM", "0", "32, 64"),
    ("HEAD_DIM", "512", "32, 64"), ("HEAD_DIM", "big", "32, 64"), ("TUNED", "yes", "common/tuned.mk"),
    ("TUNED", "0", "or nothing"), ("TUNED", "1 1", "or nothing"), ("HEAD_DIM", "64 128", "32, 64"),
    ("HEAD_DIM", "64 ", "32, 64"), ("DTYPE", "f16 foo", "f16 or bf16"), ("BACKEND", "cpu cuda", "cpu or cuda"),
    ("BLOCK_N", "0100", "decimal"), ("BLOCK_N", "64 128", "decimal"), ("BLOCK_N", "", "decimal"),
    ("WARPS", "-4", "decimal"), ("ROW_TILES", "0x2", "decimal"), ("STAGES", "2 ", "decimal"),
    ("BUG", "no_swizzle tail_read", "one name")])
@pytest.mark.parametrize("target", [[], ["run"]])
def test_a_wrong_setting_stops_with_one_sentence(name, value, rule, target):
    done = make(f"{name}={value}", *target, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"{name}={value}: " in done.stderr and rule in done.stderr


def plain_make(*words, folder=ROOT, **environment):
    """make as a reader calls it: neither BACKEND nor CC is given but by these words and this environment."""
    own = {k: v for k, v in own_environment().items() if k not in ("BACKEND", "CC")}
    return subprocess.run(["make", *words], cwd=folder, capture_output=True, text=True, env=own | environment)


def test_cuda_without_nvcc_is_refused():
    """An empty NVCC is what make finds on a machine without one."""
    done = plain_make("step05", "BACKEND=cuda", "NVCC=")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no nvcc" in done.stderr and not done.stdout


@pytest.mark.parametrize("words, environment", [(["-R"], {}), (["CC="], {}), ([], dict(CC="")), ([], dict(CC=" "))])
def test_no_compiler_is_the_default_compiler(words, environment):
    done = plain_make("--dry-run", "--always-make", "step03", "BACKEND=cpu", *words, **environment)
    compilers = re.findall(r"^(\S*) .*-c \S+ -o ", done.stdout, re.M)
    assert done.returncode == 0 and compilers and set(compilers) <= {"gcc", "cc"}, done.stdout


def test_ladder_removes_nothing_but_its_own(tree):
    """What it removes first has a name that only the command line gives."""
    before = tree.times()
    for environment in {}, dict(NAME="../..", LADDER_NAME="../.."):
        done = plain_make("ladder", "BACKEND=cpu", folder=tree.folder, **environment)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "LADDER_NAME=" in done.stderr
    assert tree.times() == before
    done = plain_make("-n", "run", "BACKEND=cpu", folder=tree.folder, LADDER_NAME="../..")
    assert "rm -rf build/run-real " in done.stdout and "../.." not in done.stdout


def test_a_build_that_fails_is_no_planted_bug():
    """A bug's run may fail, its build may not."""
    bug = sorted((ROOT / STEPS[3] / "bugs").glob("*.patch"))[0].stem
    done = make("bug-step04", f"BUG={bug}", "BLOCK_N=17", check=False)
    assert done.returncode == 2 and "pieces of 8 columns" in done.stderr


def test_a_planted_bug_takes_words_with_blanks(tmp_path):
    done = make("bug-step02", "BUG=tail_scored_as_zero", f"ARGS=--seq-kv 128 --json '{tmp_path}/a b.json'")
    assert "PASS" in done.stdout and (tmp_path / "a b.json").exists(), done.stdout + done.stderr


@pytest.mark.parametrize("pip", [0, 1])
def test_the_tests_have_packages_of_their_own(pip, tmp_path):
    """The Python of .venv is a link to the system's, which is not touched; an interrupted pip is called again."""
    tree, system = Tree(tmp_path / "tree"), tmp_path / "system"
    system.mkdir()
    python = system / "python3"
    python.write_text(f"""#!/bin/sh
case "$*" in
-m\\ venv*) mkdir -p .venv/bin; ln -sf {python} .venv/bin/python
    printf '#!/bin/sh\\necho pip\\nexit {pip}\\n' >.venv/bin/pip; chmod +x .venv/bin/pip;;
-m\\ pytest*) echo "tests run by $0";;
*) exit 1;; # NumPy is not here
esac
""")
    python.chmod(0o755)
    os.utime(python, (1, 1))
    for words in ["pip"], ["pip"] if pip else []:
        done = plain_make("test", "BACKEND=cpu", folder=tree.folder, PATH=f"{system}:{os.environ['PATH']}")
        assert re.findall("^pip$", done.stdout, re.M) == words, done.stdout + done.stderr
        assert ("tests run by .venv/bin/python" in done.stdout) == (not pip) == (done.returncode == 0)
        assert python.stat().st_mtime == 1


def test_check_gpu_without_compute_sanitizer():
    if shutil.which("compute-sanitizer"):
        pytest.skip("it is here")
    done = make("-s", "check-gpu", "STEPS=", check=False)
    assert done.returncode == 2 and "no compute-sanitizer" in done.stderr.splitlines()[0]


def test_unknown_step():
    done = make("step99", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "step99" in done.stderr


@pytest.mark.parametrize("step, setting, sentence", [
    ("step02", "BLOCK_N=12", "S and O are made of pieces of 8 columns"),
    ("step03", "BLOCK_N=12", "S and O are made of pieces of 8 columns"),
    ("step04", "BLOCK_N=12", "S and O are made of pieces of 8 columns"),
    ("step05", "BLOCK_N=12", "the products take 16 keys and 16 dimensions at a time"),
    ("step05", "BLOCK_N=24", "the products take 16 keys and 16 dimensions at a time"),
    ("step04", "STAGES=3", "STAGES: 1 (one buffer each for K and V) or 2 (double buffers)"),
    ("step05", "STAGES=3", "STAGES: 1 (one buffer each for K and V) or 2 (double buffers)"),
    ("step05", "STAGES=0", "STAGES: 1 (one buffer each for K and V) or 2 (double buffers)")])
def test_wrong_tile_constants_stop_at_compile_time(step, setting, sentence, tree):
    before = tree.times()
    done = tree.make(step, setting)
    assert done.returncode == 2
    assert re.search(r"static.?assert", done.stderr) and sentence in done.stderr, done.stderr
    assert {path for path in tree.times() if path.suffix in ("", ".o")} <= set(before)


# ---- what it builds ----

def test_an_untouched_tree_builds_nothing(tree):
    before = tree.times()
    assert tree.compiled("all") == []
    assert tree.compiled("-j4", "all") == []
    assert tree.times() == before


@pytest.mark.parametrize("touched, target, builds, leaves", [
    ("common/ptx.h", "step02", {KERNELS[1]}, {"common/main.c", "common/npy.c"}),
    ("common/attention.h", "step05", {KERNELS[4], "common/main.c", "common/options.c"}, {"common/npy.c"}),
    ("common/npy.h", "step01", {"common/npy.c", "common/main.c"}, {KERNELS[0]}),
    ("common/reference.c", "step01", {"common/reference.c"}, {KERNELS[0], "common/main.c"}),
    ("step03_tiled_smem/attention.cu", "step03", {KERNELS[2]}, {"common/main.c"}),
])
def test_a_touched_file_builds_what_includes_it(touched, target, builds, leaves, tree):
    tree.age()
    before, path = tree.times(), tree.folder / touched
    time = path.stat().st_mtime_ns
    path.touch()
    files = set(tree.compiled("-j4", target))
    os.utime(path, ns=(time, time))
    assert builds <= files and not files & leaves
    binary = next(path for path in before if path.name.startswith(target) and path.suffix == "")
    assert tree.times()[binary] > before[binary]
    assert tree.compiled("-j4", "all") == []


def test_a_header_that_went_away(tree):
    """The list of headers of an older build does not stop the next one."""
    header = tree.folder / "common/extra.h"
    source = tree.folder / "common/npy.c"
    text = source.read_text()
    tree.age()
    header.touch()
    source.write_text('#include "extra.h"\n' + text)
    assert "common/npy.c" in tree.compiled("-j2", "all")
    tree.age()
    header.unlink()
    source.write_text(text)
    assert tree.compiled("-j2", "all") == ["common/npy.c"]


def test_settings_have_binaries_of_their_own(tree):
    settings = [["HEAD_DIM=32"], ["DTYPE=bf16"], ["BLOCK_N=32"], ["WARPS=2"], ["ROW_TILES=2"], ["STAGES=1"],
                ["HEAD_DIM=32", "DTYPE=bf16", "BLOCK_N=32", "WARPS=2", "ROW_TILES=2", "STAGES=1"]]
    names = ["d32_f16", "d64_bf16", "d64_f16_n32", "d64_f16_w2", "d64_f16_r2", "d64_f16_s1", "d32_bf16_n32_w2_r2_s1"]
    for words, name in zip(settings, names):
        before = tree.times()
        files = tree.compiled("-j2", "step01", *words)
        assert set(files) == {KERNELS[0]}  # the rest is shared
        new = [path for path in tree.times() if path not in before and path.suffix == ""]
        assert [path.name for path in new] == [f"step01_naive_{name}"]
        done = subprocess.run([*new, "--help"], capture_output=True, text=True)
        dimension, dtype = name[1:].split("_")[:2]
        assert f"This build: {dtype}, head dimensions up to {dimension}." in done.stdout
        assert all(tree.times()[path] == time for path, time in before.items())
    assert tree.compiled("step01") == []  # the default's object was not replaced


# ---- TUNED=1 ----

def constants_of(*words, environment=()):
    """{constant: value} of step05's compile command, which is not run."""
    done = subprocess.run(["make", "-n", "-B", "BACKEND=cpu", "step05", *words], cwd=ROOT, capture_output=True, text=True,
                          env={**{k: v for k, v in os.environ.items() if not k.startswith("M")}, **dict(environment)})
    assert done.returncode == 0, done.stderr
    command = next(line for line in done.stdout.splitlines() if "step05_mma_ldmatrix/attention.cu -o" in line)
    return dict(re.findall(r"-D(BLOCK_N|WARPS|ROW_TILES|STAGES)=(\d+)", command))


DEFAULT = dict(BLOCK_N="64", WARPS="4", ROW_TILES="1", STAGES="2")


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192, 256])
def test_tuned_takes_the_constants_of_the_table(head_dim):
    printed = make("-s", "tuned", f"HEAD_DIM={head_dim}").stdout.splitlines()[-1]
    table = dict(word.split("=") for word in printed.split())
    assert table and set(table) <= set(DEFAULT)
    assert constants_of("TUNED=1", f"HEAD_DIM={head_dim}") == {**DEFAULT, **table}
    assert constants_of(f"HEAD_DIM={head_dim}") == DEFAULT
    if head_dim in bench.TUNED:
        assert {name: str(value) for name, value in bench.TUNED[head_dim].items()} == table


def test_what_is_given_beside_tuned_wins():
    assert constants_of("TUNED=1", "HEAD_DIM=64")["ROW_TILES"] == "2"
    assert constants_of("TUNED=1", "HEAD_DIM=64", "ROW_TILES=4")["ROW_TILES"] == "4"
    assert constants_of("TUNED=1", "HEAD_DIM=64", environment={"ROW_TILES": "1"}) == DEFAULT
    assert constants_of("TUNED=1", "HEAD_DIM=192", "ROW_TILES=2") == {**DEFAULT, "STAGES": "1", "ROW_TILES": "2"}


# ---- make sass-stepNN ----

LISTING = """
	code for sm_90
		Function : _Z9flash_fwd15AttentionParams
	.headerflags	@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                       /* 0x00000a00ff017b82 */
                                                                                /* 0x000ff00000000800 */
        /*0010*/              @!P0 BRA 0x00e0 ;                                 /* 0x00000000000c8947 */
        /*0020*/                   LDSM.16.M88.4 R16, [R42+UR4] ;               /* 0x000000042a10783b */
        /*0030*/                   HMMA.16816.F32 R56, R108, R104, RZ ;         /* 0x000000686c38723c */
        /*0040*/               @P2 LDGSTS.E.BYPASS.128 [R9], desc[UR12][R2.64] ; /* 0x0000000002097fae */
        /*0050*/                   VOTE.ANY P0, P0 ;                            /* 0x0000000000ff7806 */
        /*0060*/              @!P0 BRA 0x00b0 ;                                 /* 0x0000000000108947 */
        /*0070*/                   BSSY B0, 0xb0 ;                              /* 0x0000003000007945 */
        /*0080*/                   SHFL.BFLY PT, R6, R5, 0x1, 0x1f ;            /* 0x0c201f0005067f89 */
        /*0090*/                   STL.64 [R1], R40 ;                           /* 0x0000002801007387 */
        /*00a0*/                   BSYNC B0 ;                                   /* 0x0000000000007941 */
        /*00b0*/                   MUFU.EX2 R7, R7 ;                            /* 0x0000000700077308 */
        /*00c0*/               @P1 BRA 0x0020 ;                                 /* 0x0000000000141947 */
        /*00d0*/                   FADD R1, R2, R3 ;                            /* 0x0000000302017221 */
        /*00e0*/                   EXIT ;                                       /* 0x000000000000794d */
        /*00f0*/                   BRA 0xf0;                                    /* 0xfffffffc00fc7947 */
		..........
"""
USAGE = """
 Function _Z9flash_fwd15AttentionParams:
  REG:236 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:840 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_sass_of_a_planted_bug_is_of_its_own_object():
    commands = [make("-n", "sass-step03", *words).stdout for words in ([], ["BUG=no_swizzle"])]
    assert "build/cuda-sm_90/obj/step03_tiled_smem_d64_f16.cuda.o" in commands[0]
    assert "build/cuda-sm_90/bugs/no_swizzle/obj/step03_tiled_smem_d64_f16.cuda.o" in commands[1]


def test_sass_reads_a_listing():
    """The loop from 20 to c0; 70 to a0 can be skipped; a predicate skips no branch."""
    (name, code), = sass.functions(LISTING).items()
    assert name == "flash_fwd" and len(code) == 16
    each, some = sass.main_loop(code)
    assert each == dict(HMMA=1, LDSM=1, LDGSTS=1, MUFU=1, others=3) and some == dict(SHFL=1, STL=1, others=2)
    lines = sass.table(name, code, sass.resources(USAGE)[name])
    assert lines[0] == "flash_fwd: 236 registers, 8 bytes spilled, 1024 bytes of shared memory"
    assert lines[-1].split() == ["total", "7", "4"] and ["SHFL", "shuffle", "0", "1"] in [line.split() for line in lines]


def test_a_turn_that_comes_back_from_behind_the_loop():
    """A block that the compiler puts behind the loop belongs to it; the loop that is no loop, after EXIT, does not count."""
    listing = LISTING.replace("@!P0 BRA 0x00b0", "@!P0 BRA 0x00d0").replace("FADD R1, R2, R3", "BRA 0x00b0     ")
    code = sass.functions(listing)["flash_fwd"]
    each, some = sass.main_loop(code)
    assert sum(each.values()) == 7 and sum(some.values()) == 5
    assert sass.main_loop(sass.functions(LISTING.replace("@P1 BRA 0x0020", "    NOP   "))["flash_fwd"]) is None


def test_sass_without_the_tools_says_so(tmp_path):
    """A nvcc without its cuobjdump; the make that would compile is not reached."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "common/sass.py", "build/cuda-sm_90/obj/none.o"], capture_output=True,
                          text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "cuobjdump" in done.stderr and not done.stdout


@pytest.mark.skipif(None in sass.tools(), reason="no nvcc or no cuobjdump")
@pytest.mark.parametrize("step, words, products, loads", [
    ("step05", [], 64, 32), ("step05", ["TUNED=1"], 128, 32), ("step05", ["HEAD_DIM=128", "ROW_TILES=2"], 256, 16 + 64),
    ("step06", ["HEAD_DIM=128", "ROW_TILES=2"], 256, 16 + 64)])
def test_instructions_of_a_tile(step, words, products, loads):
    """For one warp: each mma and ldmatrix of the source once in the loop, as the chapter counts them."""
    done = make("-s", f"sass-{step}", *words)
    kernel = re.search(r"^flash_fwd: .*\n(?: .*\n)*", done.stdout, re.M).group(0)
    counted = re.findall(r"^  (HMMA|LDSM) +\w+ +(\d+) +(\d+)$", kernel, re.M)
    assert counted == [("HMMA", str(products), "0"), ("LDSM", str(loads), "0")]
    assert step != "step05" or " 0 bytes spilled" in kernel


@on_cpu
def test_other_flags_or_another_compiler_build_again(tmp_path):
    tree = Tree(tmp_path)
    objects = [f"build/cpu/obj/{name}.o" for name in (f"{STEPS[0]}_d64_f16.observed", f"{STEPS[0]}_d64_f16.plain", "npy")]
    for compiler, words in ((CC, []), (CC, ["CFLAGS=-O0"]), (f"{CC} -pipe", ["CFLAGS=-O0"]), (CC, [])):
        files = tree.compiled("-j2", *objects, *words, compiler=compiler)
        assert sorted(files) == ["common/npy.c", KERNELS[0], KERNELS[0]]
        assert tree.compiled(*objects, *words, compiler=compiler) == []
        tree.age()


@on_cpu
def test_fast_math_is_left_out(tmp_path):
    """With it NaN and -inf would not be seen."""
    tree, flags = Tree(tmp_path), ["CFLAGS=-Ofast -ffast-math -ffinite-math-only"]
    tree.compiled("-j2", "step02", *flags)
    done = tree.make("run-step02", "ARGS=--seq-q 5 --seq-kv 9", *flags)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


def test_clean(tmp_path):
    tree = Tree(tmp_path)
    tree.compiled("build/cpu/obj/npy.o", backend="cpu")
    assert (tmp_path / "build").is_dir()
    assert tree.make("clean").returncode == 0 and not (tmp_path / "build").exists()


# ---- what it runs ----

@on_cpu
def test_run_prints_the_table_of_the_readme(tree):
    """The README's block, but for the errors, whose last digits belong to the machine."""
    done = tree.make("run")
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"step\d\d_\w+ +\d", line)]
    printed = [line.split() for line in done.stdout.splitlines()[-len(STEPS):]]
    assert [line.split()[0] for line in table] == STEPS
    assert [line.split()[4:] for line in table] == [line[4:] for line in printed]


def test_compare_prints_one_line_for_each_step(tree):
    done = tree.make("compare")
    assert done.returncode == 0, done.stdout + done.stderr
    table, formulas = done.stdout.split("\n\n")
    lines = [line.split() for line in table.splitlines() if line.startswith("step")]
    assert formulas.count(" yes ") == len(STEPS) and " NO " not in formulas
    assert lines[0][0] == "step" and [line[0] for line in lines[1:]] == STEPS
    assert all(line[-1] == "PASS" for line in lines[1:]) and lines[1][3] == "-" and lines[2][3] != "-"


def test_compare_from_clean(tmp_path):
    """There is not even a build folder; one step is enough to see."""
    done = Tree(tmp_path).make("-j4", "compare", f"STEPS={STEPS[1]}")
    assert done.returncode == 0 and "PASS\n" in done.stdout, done.stdout + done.stderr


def test_compare_fails_when_a_step_is_wrong(tree):
    """It says what went wrong and ends as an error."""
    source = tree.folder / STEPS[2] / "attention.cu"
    text = source.read_text()
    assert text.count("row_sum[t][half] *= rescale;") == 1
    source.write_text(text.replace("row_sum[t][half] *= rescale;", ""))
    done = tree.make("compare")
    source.write_text(text)
    assert done.returncode == 2 and re.search("^FAIL ", done.stdout, re.M) and STEPS[2] in done.stdout


@pytest.mark.skipif(not shutil.which("git"), reason="the comparison is git's")
@pytest.mark.parametrize("step, before", list(zip(STEPS[1:], STEPS)))
def test_diff_prints_the_number_of_changed_lines(step, before):
    done = make(f"diff-{step[:6]}")
    shown = [line for line in done.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    *_, last = done.stdout.splitlines()
    changed, added, removed = map(int, re.findall(r"\d+", last))
    assert "lines changed" in last and changed == added + removed
    assert abs(len(shown) - changed) <= changed / 10  # the two ways to compare differ a little
    assert f"a/{before}/attention.cu" in done.stdout and f"b/{step}/attention.cu" in done.stdout


def test_the_first_step_has_nothing_to_differ_from():
    assert f"{STEPS[0]} is the first step" in make("diff-step01").stdout


def test_compile_commands(tree):
    assert tree.make("compile-commands").returncode == 0
    commands = json.loads((tree.folder / "compile_commands.json").read_text())
    files = [entry["file"] for entry in commands]
    assert len(set(files)) == len(files) and {*KERNELS, "common/main.c", "common/npy.c"} <= set(files)
    for entry in commands:
        assert (Path(entry["directory"]) / entry["file"]).is_file() and entry["file"] in entry["command"]
    if BACKEND == "cpu":  # an editor runs them like this
        entry = next(entry for entry in commands if entry["file"] == KERNELS[4])
        words = [*shlex.split(entry["command"]), "-fsyntax-only"]
        done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_bugs_are_listed():
    for step in STEPS:
        patches = sorted(path.stem for path in (ROOT / step / "bugs").glob("*.patch"))
        if patches:
            assert make(f"bug-{step[:6]}").stdout.split()[-len(patches):] == patches


# ---- warnings ----

@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(compiler, dtype, tree):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    files = tree.compiled("-j2", "all", f"DTYPE={dtype}", "HEAD_DIM=96", backend="cpu", compiler=compiler)
    assert set(KERNELS) <= set(files)


@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_warnings_from_nvcc(arch, dtype, tree):
    objects = [f"build/cuda-{arch}/obj/{step}_d64_{dtype}.cuda.o" for step in STEPS]
    files = tree.compiled("-j2", f"ARCH={arch}", f"DTYPE={dtype}", *objects, backend="cuda")
    assert sorted(files) == KERNELS  # two jobs: in any order
