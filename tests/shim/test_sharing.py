"""Memory that two processes, or a process and a file, hold: it is charged as long as it lives, and once per tenant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.harness import GIB, MIB, Built, Program, Tenant, eventually

# In the tenant: an exported piece, its import, and files that go to another process by a socket in a folder.
HELPERS = """
import socket
def export(h):
    fd = c_int(-1)
    assert cuda.cuMemExportToShareableHandle(byref(fd), c_uint64(h), 1, c_ulonglong(0)) == 0
    return fd.value
def import_(fd):
    h = c_uint64()
    assert cuda.cuMemImportFromShareableHandle(byref(h), c_void_p(fd), 1) == 0
    return h.value
def map_(h, n, at=0x100000000):
    return cuda.cuMemMap(c_uint64(at), c_size_t(n), c_size_t(0), c_uint64(h), c_ulonglong(0))
def release(h):
    return cuda.cuMemRelease(c_uint64(h))
def send(path, data, files):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        socket.send_fds(s, [data], files)
class Post:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX); self.s.bind(path); self.s.listen()
    def take(self):
        with self.s.accept()[0] as c:
            data, files, _, _ = socket.recv_fds(c, 4096, 4)
        return data, files
"""


def start(tenant: Tenant, code: str) -> Program:
    return tenant.start(HELPERS + code)


@pytest.fixture
def other(tmp_path: Path, built: Built) -> Iterator[Tenant]:
    """A second tenant of the same machine."""
    (tmp_path / "other").mkdir()
    made = Tenant(tmp_path / "other", built)
    yield made
    made.close()


def test_export_release_and_import_again_stays_charged(tenant: Tenant) -> None:
    """An audit took 30 GiB of a card with a quota of 4, a GiB a round."""
    answer = tenant.run(f"""{HELPERS}
context()
results = []
for _ in range(6):
    result, h = piece(GIB)
    results.append(result)
    if result == 0:
        fd = export(h); release(h); import_(fd); os.close(fd)
say(results=results, used=used())
""")
    assert answer == {"results": [0, 0, 0, 0, 2, 2], "used": 4 * GIB}


def test_released_memory_is_charged_until_its_file_is_closed_everywhere(tenant: Tenant) -> None:
    answer = tenant.run(f"""{HELPERS}
context()
_, h = piece(GIB); fd = export(h); again = export(h); copy = os.dup(fd)
steps = []
release(h); steps.append(used())
os.close(fd); os.close(again); steps.append(used())     # a copy is left, as in a message or another process
os.close(copy); steps.append(used())
_, h = piece(GIB); fd = export(h); os.close(fd); steps.append(used())
release(h); steps.append(used())
say(steps=steps)
""")
    assert answer == {"steps": [GIB, GIB, 0, GIB, 0]}


def test_program_that_closes_every_file_keeps_the_charge_of_its_exports(tenant: Tenant) -> None:
    """Whether they live elsewhere cannot be known any more."""
    answer = tenant.run(f"""{HELPERS}
context()
_, h = piece(GIB); fd = export(h)
os.closerange(3, 4096)
release(h); first = used()
_, h = piece(GIB); fd = export(h); release(h); os.close(fd)
say(first=first, then=used())
""")
    assert answer == {"first": GIB, "then": GIB}


def test_import_from_the_same_tenant_counts_once_and_is_paid_for_when_the_exporter_lets_go(tenant: Tenant) -> None:
    importer = start(
        tenant,
        f"""
context()
post = Post({str(tenant.folder / "post")!r}); say(ready=1)
_, (fd,) = post.take()
h = import_(fd); mapped = map_(h, GIB); os.close(fd)
say(mapped=mapped, used=used())
heard(); say(used=used(), more=piece(3 * GIB)[0])
heard(); cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(GIB)); release(h); say(used=used())
""",
    )
    importer.answer()
    exporter = start(
        tenant,
        f"""
context()
_, h = piece(GIB); fd = export(h)
send({str(tenant.folder / "post")!r}, b"x", [fd]); os.close(fd)
say(); heard(); release(h); say(used=used()); heard()
""",
    )
    exporter.answer()
    assert importer.answer() == {"mapped": 0, "used": GIB}
    exporter.proceed()
    exporter.answer()
    eventually(lambda: tenant.use(1).memory == GIB)  # the importer's thread has noticed by itself
    eventually(lambda: tenant.page.used(0) == GIB)  # in between both pay, never nobody
    importer.proceed()
    assert importer.answer() == {"used": GIB, "more": 0}
    importer.proceed()
    assert importer.answer() == {"used": 3 * GIB}


def test_import_is_paid_for_when_the_exporter_dies(tenant: Tenant) -> None:
    importer = start(
        tenant,
        f"""
context(); alloc(MIB)
post = Post({str(tenant.folder / "post")!r}); say()
_, (fd,) = post.take()
h = import_(fd); map_(h, GIB); os.close(fd)
say(used=used()); heard()
say(results=[piece(3 * GIB)[0], piece(2 * GIB)[0]])
""",
    )
    importer.answer()
    exporter = start(
        tenant,
        f"""
context()
_, h = piece(GIB); fd = export(h)
send({str(tenant.folder / "post")!r}, b"x", [fd]); say(); heard()
""",
    )
    exporter.answer()
    assert importer.answer() == {"used": GIB + MIB}
    exporter.kill()
    importer.proceed()
    assert importer.answer() == {"results": [2, 0]}


def test_import_from_another_tenant_is_charged_when_it_is_mapped(tenant: Tenant, other: Tenant) -> None:
    importer = start(
        tenant,
        f"""
context(); alloc(MIB)
post = Post({str(tenant.folder / "post")!r}); say()
_, (one, two) = post.take()
first, second = import_(one), import_(two)
results = [map_(first, 3 * GIB), map_(second, 2 * GIB, 0x900000000)]
say(results=results, used=used())
""",
    )
    importer.answer()
    exporter = start(
        other,
        f"""
context()
_, h = piece(3 * GIB); one = export(h)
send({str(tenant.folder / "post")!r}, b"x", [one, export(piece(GIB)[1])]); say(); heard()
""",
    )
    exporter.answer()
    assert importer.answer() == {"results": [0, 2], "used": 3 * GIB + MIB}
    assert other.page.used(0) == 4 * GIB


OPEN = """
def ipc(p):
    handle = (c_char * 64)()
    assert cuda.cuIpcGetMemHandle(byref(handle), c_uint64(p)) == 0
    return bytes(handle)
class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)
def open_(raw):
    p = c_uint64()
    return cuda.cuIpcOpenMemHandle_v2(byref(p), Handle.from_buffer_copy(raw), c_uint(1)), p.value
"""


def test_ipc_within_a_tenant_counts_once_and_is_paid_for_when_the_exporter_frees(tenant: Tenant) -> None:
    """torch.multiprocessing: tensors of one process in another."""
    importer = start(
        tenant,
        f"""{OPEN}
context(); alloc(MIB)
post = Post({str(tenant.folder / "post")!r}); say()
raw, _ = post.take()
result, p = open_(raw); again, _ = open_(raw)
say(result=result, used=used()); heard()
say(used=used())
cuda.cuIpcCloseMemHandle(c_uint64(p)); say(closed=used())
""",
    )
    importer.answer()
    exporter = start(
        tenant,
        f"""{OPEN}
context()
_, p = alloc(3 * GIB)
send({str(tenant.folder / "post")!r}, ipc(p), [])
say(); heard(); free(p); say(); heard()
""",
    )
    exporter.answer()
    assert importer.answer() == {"result": 0, "used": 3 * GIB + MIB}
    exporter.proceed()
    exporter.answer()
    eventually(lambda: tenant.use(0).memory > 3 * GIB)
    importer.proceed()
    assert importer.answer()["used"] >= 3 * GIB + MIB
    importer.answer()


def test_ipc_from_another_tenant_is_charged_and_refused_past_the_quota(tenant: Tenant, other: Tenant) -> None:
    importer = start(
        tenant,
        f"""{OPEN}
context(); alloc(2 * GIB)
post = Post({str(tenant.folder / "post")!r}); say()
results = []
for _ in range(2):
    raw, _ = post.take()
    results.append(open_(raw)[0])
say(results=results, used=used())
""",
    )
    importer.answer()
    exporter = start(
        other,
        f"""{OPEN}
context()
for n in (3 * GIB, GIB):
    send({str(tenant.folder / "post")!r}, ipc(alloc(n)[1]), [])
say(); heard()
""",
    )
    exporter.answer()
    assert importer.answer() == {"results": [2, 0], "used": 3 * GIB}


def test_pointers_of_an_imported_pool_are_charged_unless_the_tenant_is_already(tenant: Tenant, other: Tenant) -> None:
    answers = []
    for exporting in (tenant, other):
        importer = start(
            tenant,
            f"""
context(); alloc(MIB)
post = Post({str(tenant.folder / "post")!r}); say()
_, (fd,) = post.take()
pool, p = c_void_p(), c_uint64()
assert cuda.cuMemPoolImportFromShareableHandle(byref(pool), c_void_p(fd), 1, c_ulonglong(0)) == 0
before = used()
result = cuda.cuMemPoolImportPointer(byref(p), pool, byref(c_uint64(2 * GIB)))
during = used() - before
free_async(p.value)
say(result=result, charged=during, after=used() - before)
""",
        )
        importer.answer()
        exporter = start(
            exporting,
            f"""
context()
pool, fd = c_void_p(), c_int()
cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, handles=1, location=Location(DEVICE, 0))))
cuda.cuMemPoolExportToShareableHandle(byref(fd), pool, 1, c_ulonglong(0))
alloc(MIB)
send({str(tenant.folder / "post")!r}, b"x", [fd.value]); say(); heard()
""",
        )
        exporter.answer()
        answers.append(importer.answer())
        (tenant.folder / "post").unlink()
        exporter.kill()
        importer.end()
    assert answers == [{"result": 0, "charged": 0, "after": 0}, {"result": 0, "charged": 2 * GIB, "after": 0}]


def test_dma_buf_holds_the_memory_that_it_was_made_of(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        fd = c_int(); _, p = alloc(GIB)
        cuda.cuMemGetHandleForAddressRange(byref(fd), c_uint64(p), c_size_t(GIB), 1, c_ulonglong(0))
        free(p); held = used()
        os.close(fd.value)
        say(held=held, closed=used())
    """)
    assert answer == {"held": GIB, "closed": 0}


def test_external_memory_is_charged_until_it_is_destroyed(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        class Desc(ctypes.Structure):
            _fields_ = (("type", c_int), ("fd", c_uint64 * 2), ("size", c_ulonglong), ("rest", c_uint * 17))
        memory, results = c_void_p(), []
        for n in (5 * GIB, 3 * GIB):
            results.append(cuda.cuImportExternalMemory(byref(memory), byref(Desc(type=1, size=n))))
        charged = used()
        cuda.cuDestroyExternalMemory(memory)
        say(results=results, charged=charged, after=used())
    """)
    assert answer == {"results": [2, 0], "charged": 3 * GIB, "after": 0}


def test_heap_of_kernels_is_charged_with_its_context(tenant: Tenant) -> None:
    answer = tenant.run("""
        mine = context()
        sizes, steps = (5 * GIB, 2 * GIB, GIB, MIB, 2 * GIB), []
        for n in sizes: steps.append([cuda.cuCtxSetLimit(2, c_size_t(n)), used() // MIB])
        cuda.cuCtxDestroy_v2(mine); context()
        say(steps=steps, after=used())
    """)
    assert answer == {"steps": [[2, 0], [0, 2040], [0, 1016], [0, 0], [0, 2040]], "after": 0}


def test_piece_in_a_sparse_array_is_charged_while_it_is_mapped_there(tenant: Tenant) -> None:
    answer = tenant.run(f"""{HELPERS}
context()
class Info(ctypes.Structure):
    _fields_ = (("kind", c_int), ("array", c_void_p), ("part", c_int), ("where", c_uint64 * 4), ("operation", c_int),
                ("handles", c_int), ("handle", c_uint64), ("offset", c_uint64), ("rest", c_uint * 4))
def tile(a, h, x, operation=1):
    info = Info(array=a, operation=operation, handle=h)
    info.where[1] = x
    return cuda.cuMemMapArrayAsync(byref(info), 1, None)
array = c_void_p()
cuda.cuArray3DCreate_v2(byref(array), byref(Array3D(MIB, 32768, 1, 1, 1, 0x40)))
pieces = [piece(GIB)[1] for _ in range(3)]
for x, h in enumerate(pieces): tile(array, h, x); release(h)
steps = [used()]
tile(array, pieces[0], 0, operation=2); steps.append(used())
_, h = piece(GIB); tile(array, h, 1); release(h); steps.append(used())      # in the place of the second
cuda.cuArrayDestroy(array); steps.append(used())
say(steps=steps)
""")
    assert answer["steps"][:2] == [3 * GIB, 2 * GIB]
    assert answer["steps"][2:] == [2 * GIB, 0]


def test_forked_child_watches_nothing_of_its_parents(tenant: Tenant) -> None:
    answer = tenant.run(f"""{HELPERS}
context()
_, h = piece(GIB); fd = export(h); release(h)
pid = os.fork()
if not pid:
    os.close(fd)
    context()
    ours = [n for n in os.listdir("/proc/self/fd") if int(n) >= 512 and "anon" in os.readlink(f"/proc/self/fd/{{n}}")]
    os._exit(10 * len(ours) + alloc({MIB})[0])
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
before = used(); os.close(fd)
say(code=code, before=before, after=used())
""")
    assert answer == {"code": 0, "before": GIB, "after": 0}
