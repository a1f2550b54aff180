"""Finding functions: every way to a hooked name leads to its wrapper, and nothing else changes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess

import pytest

from shim.harness import ROOT, Tenant

STRINGS = re.compile(r"^(GATE|NOTE|COPY|WAIT|QUERY|TOUCH|WORD|BODY)\((\w+),\s*(\w+),", re.MULTILINE)


EVERYWHERE = """
access     pthread_mutex_lock pthread_mutex_unlock pthread_mutex_trylock pthread_once pthread_create pthread_detach
    pthread_sigmask mmap munmap memcpy memset memmove strlen strcmp strncmp strncasecmp snprintf vsnprintf strerror
    secure_getenv open close write fcntl poll socket connect send sendmsg recv getpid nanosleep clock_gettime prctl
    syscall sigfillset dlopen dlerror dl_iterate_phdr __errno_location __tls_get_addr
    read strchr strstr strtoull getauxval getenv setenv epoll_create1 epoll_ctl eventfd
    pthread_mutex_timedlock geteuid
"""


def hooked() -> dict[str, str]:
    """Each exported symbol of the table, and the name it is asked for by."""
    found = {}
    for _, name, kinds in STRINGS.findall((ROOT / "shim" / "hooks.def").read_text()):
        found[name] = name
        if kinds != "ONE":
            found[f"{name}_pt{kinds.lower()}"] = name
    return found


def probe(tenant: Tenant, way: str, **environment: str) -> list[tuple[str, str, str]]:
    """What the probe says: name asked for, library and symbol it leads to."""
    done = subprocess.run(
        [tenant.built.folder / "probe", way],
        env=tenant.environment() | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [(name, library, symbol) for name, library, symbol in map(str.split, done.stdout.splitlines())]


def test_the_table_is_read_by_this_test_as_by_the_compiler(tenant: Tenant) -> None:
    names = [name for name, _, _ in probe(tenant, "dlsym")]
    assert names == list(hooked())
    assert len(names) > 150


@pytest.mark.parametrize("way", ["linked", "dlsym", "next"])
def test_every_hooked_symbol_is_the_wrapper_of_that_very_symbol(tenant: Tenant, way: str) -> None:
    """For a program linked with -lcuda, by dlsym on the opened library, and by RTLD_NEXT from the program."""
    for name, library, symbol in probe(tenant, way):
        assert (library, symbol) == ("libaliquot.so", name)


@pytest.mark.parametrize("way", ["proc", "proc-ptds"])
def test_the_drivers_own_lookup_gives_the_wrapper_of_the_version_and_stream_kind_asked_for(
    tenant: Tenant, way: str
) -> None:
    """At every version of the API: what the driver chose decides, not the name."""
    plain = probe(tenant, way, ALIQUOT_TENANT="")
    shimmed = probe(tenant, way)
    assert len(plain) == len(shimmed) > 500
    wrapped = set()
    for (asked, _, chosen), (same, library, symbol) in zip(plain, shimmed, strict=True):
        assert (asked, chosen) == (same, symbol)
        if chosen in hooked():
            assert library == "libaliquot.so", chosen
            wrapped.add(symbol)
        else:
            assert library in ("libcuda.so.1", "-"), chosen
    assert {"cuGetProcAddress", "cuGetProcAddress_v2", "cuMemAlloc", "cuMemAlloc_v2"} <= wrapped
    assert ("cuLaunchKernel_ptsz" in wrapped) == (way == "proc-ptds")
    assert ("cuMemcpy_ptds" in wrapped) == (way == "proc-ptds")


def test_unknown_and_unhooked_names_are_the_drivers_business(tenant: Tenant) -> None:
    answers = {name: library for name, library, _ in probe(tenant, "proc")}
    assert answers["empty"] == answers["cuNoSuchThing"] == "-"
    assert answers["cuInit"] == "libcuda.so.1"


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("cuCtxGetDevice", 13000, False),
        ("cuMemPoolGetAttribute", 99000, False),
        ("cuStreamQuery", 99000, False),
        ("cuStreamIsCapturing", 99000, False),
        ("cuLaunchKernel", 99000, True),
    ],
)
def test_a_newer_function_is_named_only_where_it_does_something_that_is_limited(
    tenant: Tenant, capfd: pytest.CaptureFixture[str], name: str, version: int, said: bool
) -> None:
    answer = tenant.run(f"""
        found, status = c_void_p(), c_int()
        result = cuda.cuGetProcAddress_v2(b"{name}", byref(found), {version}, c_uint64(0), byref(status))
        say(result=result, found=bool(found))
    """)
    assert answer == {"result": 0, "found": True}
    assert ("newer than this library" in capfd.readouterr().err) == said


def test_without_a_tenant_the_program_gets_the_driver_itself(tenant: Tenant) -> None:
    for way in ("dlsym", "proc"):
        libraries = {library for _, library, _ in probe(tenant, way, ALIQUOT_TENANT="")}
        assert "libaliquot.so" not in libraries


def test_a_symbol_of_that_name_in_another_library_is_left_alone(tenant: Tenant) -> None:
    answer = tenant.run(f"""
        other = ctypes.CDLL({str(tenant.built.folder / "lib" / "libnvidia-ml.so.1")!r})
        mine = ctypes.cast(other.cuMemAlloc_v2, c_void_p).value
        say(same=mine == ctypes.cast(cuda.cuMemAlloc_v2, c_void_p).value)
    """)
    assert answer == {"same": False}


def test_a_library_that_wraps_libc_by_rtld_next_still_finds_libc(tenant: Tenant) -> None:
    """dlsym is jumped to, not called: otherwise RTLD_NEXT would be meant from the shim's place, and find the caller."""
    for preload in (
        f"{tenant.built.shim} {tenant.built.folder / 'libnext.so'}",
        f"{tenant.built.folder / 'libnext.so'} {tenant.built.shim}",
    ):
        done = subprocess.run(
            [tenant.built.folder / "plain"], env=tenant.environment(preload=preload), capture_output=True, text=True
        )
        assert "yield 1000" in done.stdout


def test_a_program_without_cuda_gets_no_thread_no_file_and_no_driver(tenant: Tenant) -> None:
    preload = str(tenant.built.shim)
    done = subprocess.run(
        [tenant.built.folder / "plain"], env=tenant.environment(preload=preload), capture_output=True, text=True
    )
    assert done.stdout == "threads 1 files 3 yield 0 driver 0\n"
    assert done.stderr == ""


def test_dlerror_reports_the_programs_own_lookups_alone(tenant: Tenant) -> None:
    answer = tenant.run("""
        libc = ctypes.CDLL(None)
        libc.dlerror.restype = ctypes.c_char_p
        libc.dlsym.restype = c_void_p
        libc.dlsym.argtypes = [c_void_p, ctypes.c_char_p]
        found = libc.dlsym(cuda._handle, b"cuMemAlloc_v2") is not None
        clear = libc.dlerror()
        absent = libc.dlsym(cuda._handle, b"cuNoSuchThing")
        say(found=found, clear=clear, absent=absent, error=libc.dlerror().decode())
    """)
    assert answer["found"] is True
    assert answer["clear"] is None
    assert answer["absent"] is None
    assert "cuNoSuchThing" in answer["error"]


def test_the_library_asks_only_for_what_every_c_library_has() -> None:
    """Loaded into a musl image it must find all it needs, or not even `sh` starts: the rest is weak, or not there."""
    allowed = set(EVERYWHERE.split())
    library = ROOT / "src" / "aliquot" / "lib" / "libaliquot.so"
    table = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
    undefined = [line.split() for line in table.splitlines() if " UND " in line]
    strong = {fields[7].split("@")[0] for fields in undefined if len(fields) > 7 and fields[4] == "GLOBAL"}
    assert strong <= allowed
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", table)}
    if importlib.util.find_spec("ziglang") and "CC" not in os.environ:  # gcc builds for this machine's glibc
        assert max(versions) <= (2, 17)
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(.+?)\]", needed)) <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
