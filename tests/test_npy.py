"""common/npy.c against NumPy: every file NumPy writes of a type we take, and a named refusal for every other."""

import os
import re
import shlex
import stat
import struct
import subprocess
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, small_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOURCES = [ROOT / "tests/unit/npy_driver.c", ROOT / "common/npy.c"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
NAMES = {"f2": "f16", "f4": "f32", "u2": "u16 (bf16)", "i4": "i32", "i8": "i64", "u1": "u8", "b1": "bool"}
DESCRS = ["<f2", ">f2", "<f4", ">f4", "<u2", ">u2", "<i4", ">i4", "<i8", ">i8", "|u1", "|b1"]
SHAPES = [(), (1,), (5,), (0,), (2, 3), (3, 0, 2), (4, 1, 3), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2, 1, 2)]


def build(folder, flags):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    driver = folder / "npy_driver"
    command = [*compiler, "-std=gnu11", "-Wall", "-Wextra", "-O2", *flags]
    done = subprocess.run([*command, f"-I{ROOT / 'common'}", *SOURCES, "-o", driver], capture_output=True, text=True)
    return driver, done.returncode, done.stderr


@pytest.fixture(scope="session", params=["plain", "sanitized"])
def driver(request, tmp_path_factory):
    """Each test runs twice: as built for users, and with the compiler's checks of addresses and undefined behaviour."""
    folder = tmp_path_factory.mktemp("npy")
    if request.param == "sanitized":
        probe = folder / "probe.c"
        probe.write_text("int main(void) { return 0; }\n")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        commands = [*compiler, *SANITIZE, probe, "-o", folder / "probe"], [folder / "probe"]
        if any(subprocess.run(command, capture_output=True).returncode for command in commands):
            pytest.skip("this compiler has no sanitizers")
    path, status, errors = build(folder, SANITIZE if request.param == "sanitized" else [])
    assert status == 0, errors
    return path


def run(driver, *arguments, **options):
    return subprocess.run([driver, *arguments], capture_output=True, text=True, timeout=20, **options)


def refused(driver, path, *reasons, command="read", target=None, **options):
    """The program ends with 2 and one line that names the file and every reason."""
    done = run(driver, command, path, *([target] if target else []), **options)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == "" and done.stderr.endswith("\n") and done.stderr.count("\n") == 1, done.stderr
    for reason in (Path(target or path).name[-200:], *reasons):
        assert reason in done.stderr
    return done.stderr


def accepted(driver, path, array):
    """The program reads `array` from the file: type, shape, and the bytes in C order, little-endian."""
    raw = Path(f"{path}.raw")
    done = run(driver, "read", path, raw)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{NAMES[array.dtype.str[1:]]} {array.shape} count={array.size}\n"
    assert raw.read_bytes() == array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")


def sample(descr, shape):
    """Every bit pattern is data: NaN, infinities and denormals pass through unchanged."""
    dtype, count = np.dtype(descr), int(np.prod(shape))
    generator = np.random.default_rng(count)
    if dtype.kind == "b":
        return generator.integers(0, 2, count).astype(dtype).reshape(shape)
    return np.frombuffer(generator.bytes(count * dtype.itemsize), dtype).reshape(shape)


def npy(header, data=b"", version=(1, 0), length=None):
    """A file with this header text, its length field true unless `length` is given."""
    if isinstance(header, str):
        header = header.encode("utf-8")
    length = len(header) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", length) + header + data


def plain(descr="'<f4'", order="False", shape="(2,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


# ---- What is read ----


@pytest.mark.parametrize("descr", DESCRS)
def test_types_orders_and_shapes(driver, tmp_path, descr):
    for number, shape in enumerate(SHAPES):
        for order in "CF":
            array = np.array(sample(descr, shape), order=order, copy=True)
            path = tmp_path / f"{number}{order}.npy"
            np.save(path, array)
            accepted(driver, path, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", "CF")
def test_versions(driver, tmp_path, version, order):
    array = np.array(sample(">f4", (3, 5, 2)), order=order, copy=True)
    path = tmp_path / "a.npy"
    with open(path, "wb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(file, array, version=version)
    accepted(driver, path, array)


@pytest.mark.parametrize(
    "header",
    [
        plain(),
        plain().strip(),
        '{"shape": (2,), "fortran_order": False, "descr": "<f4"}',
        "{'shape':(2,),'descr':'<f4','fortran_order':False}",
        "{ 'descr' : \"<f4\" ,\n\t'fortran_order' : True , 'shape' : ( 2 , ) , } \n",
        plain("'=f4'"),
        plain("'f4'"),
        plain("'|f4'"),
        plain() + " " * 9000 + "\n",
    ],
)
def test_harmless_headers(driver, tmp_path, header):
    array = np.array([1.5, -2], np.float32)
    path = tmp_path / "a.npy"
    path.write_bytes(npy(header, array.tobytes()))
    np.testing.assert_array_equal(np.load(path), array)
    accepted(driver, path, array)


def test_regular_file_on_standard_input(driver, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3, dtype=np.int32))
    with open(tmp_path / "a.npy", "rb") as file:
        done = run(driver, "read", "/dev/stdin", stdin=file)
    assert done.stdout == "i32 (3,) count=3\n"


# ---- What is refused ----


@pytest.mark.parametrize(
    "dtype, name",
    [
        ("<f8", "float64"), (">f8", "float64"), ("<c8", "complex"), ("<c16", "complex"), ("<i2", "int16"),
        ("|i1", "int8"), ("<u4", "uint32"), ("<u8", "uint64"), ("|S3", "byte strings"), ("<U3", "strings"),
        ("<M8[ns]", "dates"), ("<m8[s]", "time spans"), ("|V2", "bfloat16"), ("|V3", "raw bytes"),
        ([("x", "<f4"), ("y", "<f4")], "structured"),
    ],
)  # fmt: skip
def test_types_refused_by_name(driver, tmp_path, dtype, name):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(3, dtype))
    refused(driver, path, name, "float16, float32")


def test_objects_are_refused(driver, tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}, None]), allow_pickle=True)
    refused(driver, tmp_path / "a.npy", "'|O'", "Python objects")


EIGHT = np.zeros(2, np.float32).tobytes()


@pytest.mark.parametrize(
    "content, reasons",
    [
        (b"", ["not an .npy file", "0 bytes"]),
        (b"\x93NUMP", ["not an .npy file", "5 bytes"]),
        (b"hello, world", ["not an .npy file", "68 65 6c"]),
        (b"PK\3\4" + bytes(30), ["not an .npy file", ".npz", "numpy.save"]),
        (b"\x93NUMPY", ["truncated header", "6 bytes"]),
        (b"\x93NUMPY\1\0\0", ["truncated header", "9 bytes there, 10 needed"]),
        (b"\x93NUMPY\2\0\0\0", ["truncated header", "10 bytes there, 12 needed"]),
        (npy(plain(), EIGHT, version=(4, 0)), ["unknown .npy version 4.0"]),
        (npy(plain(), EIGHT, version=(1, 1)), ["unknown .npy version 1.1"]),
        (npy(plain(), EIGHT, version=(0, 0)), ["unknown .npy version 0.0"]),
        (npy(plain(), length=65535), ["truncated header", "65545 needed"]),
        (npy(plain(), version=(2, 0), length=2**32 - 1), ["truncated header", "4294967307 needed"]),
        (npy(plain() + " " * 10000, EIGHT), ["header of", "10000 is the most"]),
        (npy(plain(), EIGHT[:-1]), ["truncated data", "7 bytes there, 8 needed", "(2,)", "f32"]),
        (npy(plain(shape="(2, 3)")), ["truncated data", "0 bytes there, 24 needed", "(2, 3)"]),
        (npy(plain(shape=f"({2**60},)"), EIGHT), ["truncated data", f"{2**62} needed"]),
        (npy(plain("'>f4'", shape=f"({2**40},)"), EIGHT), ["truncated data"]),
        (npy(plain(), EIGHT + b"x"), ["trailing bytes", "9 bytes there, 8 needed"]),
        (npy(plain(shape="(0, 4)"), b"x"), ["trailing bytes", "1 bytes there, 0 needed"]),
        (npy(plain(shape=f"({2**62}, 4)")), ["overflows", f"({2**62}, 4)"]),
        (npy(plain(shape=f"({2**62},)")), ["overflows"]),
        (npy(plain(shape=f"({2**63},)")), ["overflows", str(2**63)]),
        (npy(plain(shape=f"({10**4000},)")), ["overflows"]),
        (npy(plain(shape=f"(0, {2**62}, {2**62})")), ["overflows"]),
        (npy(plain(shape="(1, 1, 1, 1, 1, 1, 1, 1, 1)"), EIGHT[:4]), ["more dimensions than the 8"]),
        (npy(plain(shape="(-2,)"), EIGHT), ["size -2 is negative"]),
        (npy(plain(shape=f"(-{2**70},)"), EIGHT), ["negative"]),
        (npy(plain(shape="(2)"), EIGHT), ["malformed header", "','"]),
        (npy(plain(shape="(2 3)"), EIGHT), ["malformed header", "','"]),
        (npy(plain(shape="(2L,)"), EIGHT), ["malformed header", "L,"]),
        (npy(plain(shape="(02,)"), EIGHT), ["malformed header", "02,"]),
        (npy(plain(shape="(2.0,)"), EIGHT), ["malformed header", ".0"]),
        (npy(plain(shape="(,)"), EIGHT), ["malformed header", "a plain size"]),
        (npy(plain(shape="(two,)"), EIGHT), ["malformed header", "two", "a plain size"]),
        (npy(plain(shape="[2]"), EIGHT), ["malformed header", "[2]", "a shape"]),
        (npy(plain(shape="2"), EIGHT), ["malformed header", "a shape"]),
        (npy(plain().replace(",", "", 1), EIGHT), ["malformed header", "',' or '}'"]),
        (npy(plain(order="1"), EIGHT), ["malformed header", "True or False"]),
        (npy(plain(order="Falsey"), EIGHT), ["malformed header", '"y, ']),
        (npy(plain("'<f5'"), EIGHT), ["'<f5'", "unknown"]),
        (npy(plain("'<<f4'"), EIGHT), ["'<<f4'", "unknown"]),
        (npy(plain("''"), EIGHT), ["unknown"]),
        (npy(plain("'" + "f4" * 500 + "'"), EIGHT), ["unknown"]),
        (npy(plain("('<f4', (2,))"), EIGHT), ["structured"]),
        (npy(plain("f4"), EIGHT), ["malformed header", "a quoted type"]),
        (npy(plain("'<f4"), EIGHT), ["is not supported"]),
        (npy("{'descr': '<f4', 'shape': (2,)}", EIGHT), ["lacks its key 'fortran_order'"]),
        (npy("{}", EIGHT), ["lacks its key 'descr'"]),
        (npy("{'descr': '<f4', " + plain()[1:], EIGHT), ["'descr' stands twice"]),
        (npy("{'color': 3, " + plain()[1:], EIGHT), ["'color'", "is not descr, fortran_order or shape"]),
        (npy("", EIGHT), ["malformed header", "it ends", "'{'"]),
        (npy("[]", EIGHT), ["malformed header", "[]"]),
        (npy(plain()[:20], EIGHT), ["malformed header"]),
        (npy(plain() + "import os", EIGHT), ["malformed header", "import os"]),
        (npy(plain() + "\0", EIGHT), ["malformed header"]),
        (npy("{'descr\0': '<f4'}", EIGHT), ["'descr?'"]),
        (npy("{'d\n\x1b[2J\u00fc': '<f4'}", EIGHT, version=(3, 0)), ["header key"]),
    ],
)
def test_malformed_files(driver, tmp_path, content, reasons):
    path = tmp_path / "wrong.npy"
    path.write_bytes(content)
    assert refused(driver, path, *reasons).strip().isprintable()


def test_every_truncation(driver, tmp_path):
    whole = npy(plain(), EIGHT)
    for size in range(0, len(whole), 5):
        path = tmp_path / "a.npy"
        path.write_bytes(whole[:size])
        refused(driver, path, "not an .npy" if size < 6 else "truncated")


def test_what_is_not_a_regular_file(driver, tmp_path):
    refused(driver, tmp_path / "missing.npy", "No such file")
    refused(driver, tmp_path, "a directory")
    os.mkfifo(tmp_path / "fifo")
    refused(driver, tmp_path / "fifo", "a pipe or device")  # nobody writes to it: opening it would hang
    refused(driver, "/dev/stdin", "a pipe or device", stdin=subprocess.PIPE)
    refused(driver, "/dev/null", "a pipe or device")


def test_more_than_memory_is_refused_before_it_is_read(driver, tmp_path):
    path, size = tmp_path / "huge.npy", 2**43
    header = npy(plain("'|u1'", "True", f"({size // 2}, 2)"))
    try:
        path.write_bytes(header)
        os.truncate(path, len(header) + size)  # a hole: it takes no room on the disk
    except OSError:
        pytest.skip("no sparse files of this size here")
    refused(driver, path, f"{2 * size} bytes of memory", f"({size // 2}, 2)")


def test_names_of_files_keep_the_line_whole(driver, tmp_path):
    (tmp_path / "two\nlines.npy").write_bytes(b"no")
    done = run(driver, "read", tmp_path / "two\nlines.npy")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "two?lines.npy: not an" in done.stderr
    deep = tmp_path.joinpath(*["d" * 200] * 3)
    deep.mkdir(parents=True)
    np.save(deep / "a.npy", np.zeros(2))
    refused(driver, deep / "a.npy", "float64", "uint8 and bool")


# ---- What is written ----


@pytest.mark.parametrize("descr", DESCRS)
def test_written_files_are_numpys(driver, tmp_path, descr):
    for number, shape in enumerate([*SHAPES, (1, 1234567, 1, 1, 0, 1, 7654321, 1)]):
        array = np.array(sample(descr, shape), order="F", copy=True)
        source, target = tmp_path / f"{number}.npy", tmp_path / f"{number}copy.npy"
        np.save(source, array)
        done = run(driver, "copy", source, target)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        copy = np.load(target)
        assert copy.dtype == array.dtype.newbyteorder("<") and copy.shape == array.shape
        assert copy.tobytes() == array.astype(copy.dtype).tobytes()
        content = target.read_bytes()
        assert content[6:8] == b"\1\0" and (len(content) - copy.nbytes) % 64 == 0
        assert content[: len(content) - copy.nbytes].endswith(b"\n")


@pytest.fixture
def pair(tmp_path):
    """A file to copy and an older file at the place where the copy goes, alone in its folder."""
    source, folder = tmp_path / "in.npy", tmp_path / "folder"
    folder.mkdir()
    np.save(source, np.arange(20000, dtype=np.int64))
    target = folder / "out.npy"
    target.write_bytes(b"older")
    return source, target


def untouched(target):
    return target.read_bytes() == b"older" and os.listdir(target.parent) == [target.name]


def test_a_write_replaces_the_whole_file(driver, pair):
    source, target = pair
    os.chmod(target, 0o640)
    assert run(driver, "copy", source, target).returncode == 0
    assert np.load(target).size == 20000 and os.listdir(target.parent) == ["out.npy"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_obeys_the_umask(driver, pair):
    source, target = pair
    target.unlink()
    done = run(driver, "copy", source, target.name, cwd=target.parent, preexec_fn=lambda: os.umask(0o027))
    assert done.returncode == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_symbolic_link_stays(driver, pair):
    source, target = pair
    link = source.parent / "link.npy"
    link.symlink_to("folder/out.npy")
    assert run(driver, "copy", source, link).returncode == 0
    assert link.is_symlink() and np.load(target).size == 20000 and os.listdir(target.parent) == ["out.npy"]


def test_a_file_may_be_copied_onto_itself(driver, pair):
    source, _ = pair
    assert run(driver, "copy", source, source).returncode == 0
    assert np.load(source).size == 20000


def test_a_full_disk_leaves_the_older_file(driver, pair):
    (source, target), options = pair, small_disk(4096)
    refused(driver, source, "cannot write", command="copy", target=target, **options)
    assert untouched(target)
    refused(driver, source, "cannot write", command="copy", target=target.parent / "new.npy", **options)
    assert untouched(target)


def test_an_unreadable_input_leaves_the_older_file(driver, pair):
    _, target = pair
    done = run(driver, "copy", target, target)
    assert done.returncode == 2 and untouched(target)


def test_destinations_that_cannot_be(driver, pair):
    source, target = pair
    refused(driver, source, "cannot write", "directory", command="copy", target=target.parent)
    refused(driver, source, "cannot write", "No such file", command="copy", target=target.parent / "no/out.npy")
    refused(driver, source, "cannot write", "Not a directory", command="copy", target=target / "out.npy")
    refused(driver, source, "cannot write", "too long", command="copy", target=target.parent / ("n" * 300))
    assert untouched(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_protected_destinations(driver, pair):
    source, target = pair
    os.chmod(target, 0o444)
    refused(driver, source, "Permission denied", command="copy", target=target)
    os.chmod(target, 0o644)
    os.chmod(target.parent, 0o555)
    refused(driver, source, "Permission denied", command="copy", target=target)
    os.chmod(target.parent, 0o755)
    assert untouched(target)


def test_a_pipe_is_written_to_not_replaced(driver, pair):
    source, target = pair
    target.unlink()
    os.mkfifo(target)
    received = []
    reader = threading.Thread(target=lambda: received.append(target.read_bytes()), daemon=True)
    reader.start()
    assert run(driver, "copy", source, target).returncode == 0
    reader.join(20)
    assert received == [source.read_bytes()] and stat.S_ISFIFO(target.stat().st_mode)


# ---- Fuzzing ----

FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def answers_cleanly(driver, path, content):
    """Either a refusal, or the array that NumPy reads from the same file."""
    path.write_bytes(content)
    done = run(driver, "read", path)
    if done.returncode:
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert path.name in done.stderr and done.stderr.strip().isprintable()
        return
    if re.search(rb"[\r\n]\s*{", content):  # a line break before the dict: harmless here, wrong indentation in Python
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = np.load(path)
    accepted(driver, path, array)


WHOLE = [
    npy(plain("'<f4'", "False", "(2, 3)"), bytes(range(24))),
    npy(plain("'>i4'", "True", "(3, 2)"), bytes(range(24)), version=(2, 0)),
    npy(plain("'|u1'", "True", "(2, 3, 4)"), bytes(range(24)), version=(3, 0)),
]


@FUZZ
@given(
    st.sampled_from(WHOLE),
    st.lists(
        st.tuples(st.integers(0, 80), st.integers(0, 255) | st.sampled_from(b"0123456789<>(),'{}L ")), max_size=3
    ),
    st.none() | st.integers(0, 110),
)
def test_fuzzed_bytes(driver, tmp_path, whole, changes, size):
    content = bytearray(whole)
    for place, byte in changes:
        content[place] = byte
    answers_cleanly(driver, tmp_path / "fuzz.npy", bytes(content[:size]))


TOKENS = ["{", "}", "(", ")", "[", ":", ",", ",", "'", '"', " ", "\n", "-", "+", "0", "1", "2", "3", "4", "24", "12",
          "L", "True", "False", "None", "'descr'", "'fortran_order'", "'shape'", "'<f4'", "'>f2'", "'|u1'", "'<f8'",
          "9223372036854775807", "4611686018427387904", "\0", "\u00e9", "#", "\\"]  # fmt: skip


@FUZZ
@given(
    st.sampled_from([("<f4", "(2, 3)"), (">u2", "(3, 4)"), ("|b1", "(24,)"), ("=i8", "(3,)"), ("u1", "(4, 3, 2)")]),
    st.booleans(),
    st.permutations([0, 1, 2]),
    st.lists(st.tuples(st.integers(0, 16), st.integers(0, 1), st.sampled_from(TOKENS)), max_size=2),
)
def test_fuzzed_headers(driver, tmp_path, value, fortran, order, changes):
    """Whole tokens are replaced or inserted, and the header's length stays true, so the parser sees them all."""
    descr, shape = value
    values = [[f"'{descr}'"], [str(fortran)], re.findall(r"\d+|\S", shape)]
    pairs = [[f"'{key}'", ":", *values[i], ","] for i, key in enumerate(["descr", "fortran_order", "shape"])]
    tokens = ["{", *[token for i in order for token in pairs[i]], "}"]
    for place, replace, token in changes:
        tokens[place : place + replace] = [token]
    data = bytes(i % 2 for i in range(24))
    answers_cleanly(driver, tmp_path / "fuzz.npy", npy(" ".join(tokens), data, version=(3, 0)))
