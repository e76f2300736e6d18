"""Compiles kernels.cu to PTX with NVRTC, one file a kernel; needs neither a GPU nor a toolkit.

compile.py NVRTC FOLDER           writes FOLDER/NAME.ptx, and removes kernels that are gone
compile.py NVRTC FOLDER --check   compares the files with what the sources give

NVRTC is the path of libnvrtc.so. scripts/kernels.sh calls this program; it explains the rest.
"""

import ctypes
import difflib
import os
import re
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
OPTIONS = [
    "--gpu-architecture=compute_70",
    "--std=c++17",
    # Arithmetic is written with intrinsics, which these do not change.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
]

# The oldest version that has every instruction: drivers from CUDA 11.0 (450) on load it. NVRTC
# writes its own version, which older drivers refuse.
HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"

PARAMETERS = ["jobs", "addresses", "constants", "blocks"]

# Results that differ from those of IEEE 754, threads that share data, and memory beside global.
REFUSED = re.compile(
    r"^(fma|mad\S*\.f(16|32|64)|rcp|rsqrt|sin|cos|ex2|lg2|tanh|atom|red|bar|barrier|membar|fence"
    r"|shfl|vote|match|activemask|call)\b|\.(approx|full|ftz|sat|shared|local)\b"
)
ROUNDED = re.compile(r"^(add|sub|mul|div|sqrt)\.(?!rn\.)\S*f(32|64)$")
NARROWING = re.compile(r"^cvt\.(?!rn\.)\S*(f16|bf16|f32)\.(\S+)$")


def compile_sources(library):
    """The PTX of kernels.cu."""
    # NVRTC looks for included files in the working directory.
    os.chdir(SOURCES)
    nvrtc = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()
    source = (SOURCES / "kernels.cu").read_bytes()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", 0, None, None
    )
    if status == 0:
        array = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
        status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), array)
    if status != 0:
        log = result(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        sys.exit(f"{log}\nkernels.cu: {nvrtc.nvrtcGetErrorString(status).decode()}")
    return result(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)


def result(get_size, get, program):
    """A text of NVRTC."""
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.value.decode()


def split(ptx):
    """The text of each kernel by name, independent of other kernels and of the compiler's build."""
    found = re.finditer(r"^\.visible \.entry (\w+)\(.*?^}", ptx, re.DOTALL | re.MULTILINE)
    kernels = {match.group(1): clean(match.group(1), match.group()) for match in found}
    if len(kernels) != ptx.count(".entry "):
        sys.exit("kernels.cu: its PTX has kernels that were not found in it")
    return kernels


def clean(name, text):
    """A kernel without comments; its labels and parameters do not depend on other kernels."""
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"\$L__BB\d+_", "$L", text)
    for index, parameter in enumerate(PARAMETERS):
        text = re.sub(rf"\b{name}_param_{index}\b", parameter, text)
    text = re.sub(r"[ \t]*\t[ \t]*(?=\S)", "\t", text)
    lines = [line.rstrip() for line in text.splitlines()]
    return HEADER + "\n" + "\n".join(line for line in lines if line) + "\n"


def faults(name, text):
    """What a kernel must not have."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("@", " @").split()
        words = [word.rstrip(";") for word in words if not word.startswith("@")]
        instruction = words[0] if words else ""
        narrowing = NARROWING.match(instruction)
        widens = narrowing and narrowing.group(1) == "f32" and narrowing.group(2) in ("f16", "bf16")
        if (
            REFUSED.search(instruction)
            or ROUNDED.match(instruction)
            or (narrowing and not widens)
            or re.search(r"\.(shared|local)\b", line)
        ):
            yield f"{name}.ptx:{number}: {line.strip()}"


def compare(kernels, folder):
    """Differences between the kernels and the files of a folder."""
    names = {path.stem for path in folder.glob("*.ptx")} | set(kernels)
    for name in sorted(names):
        path = folder / f"{name}.ptx"
        old = path.read_text(encoding="ascii") if path.exists() else ""
        new = kernels.get(name, "")
        if old != new:
            lines = difflib.unified_diff(
                old.splitlines(), new.splitlines(), path.name, "kernels.cu", lineterm=""
            )
            yield "\n".join(list(lines)[:20])


def write(kernels, folder):
    """Replaces the files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.ptx"):
        if path.stem not in kernels:
            path.unlink()
    for name, text in kernels.items():
        (folder / f"{name}.ptx").write_text(text, encoding="ascii")


def main():
    library, folder, *options = sys.argv[1:]
    library, folder = Path(library).resolve(), Path(folder).resolve()
    kernels = split(compile_sources(str(library)))
    wrong = [fault for name, text in kernels.items() for fault in faults(name, text)]
    if wrong:
        sys.exit("\n".join(["instructions that no kernel may have:", *wrong[:20]]))
    if options == ["--check"]:
        different = list(compare(kernels, folder))
        if different:
            message = f"{len(different)} files differ; run `make kernels`"
            sys.exit("\n".join([*different[:5], message]))
    else:
        write(kernels, folder)
    together = "".join(kernels[name] for name in sorted(kernels)).encode()
    print(f"{len(kernels)} kernels, {len(together):,} bytes of PTX")


if __name__ == "__main__":
    main()
