"""The kernel of `aliquot burn`, as PTX that the driver compiles for the card that is there (sm_70 and later).

    burn(u64 iterations, u64 out)

Every thread steps a 64-bit linear congruential generator `iterations` times, from the thread's own number. A fixed
amount of work, not of time: a kernel that was stopped half-way needs its GPU time back, so kernels done per second are
the share of the card. With `out` = 0 nothing is stored. Else it is the device address of three u64, 8-byte aligned:

    out[0]  += 1 when thread 0 of block 0 is done, atomically; and += 2**40 for every thread whose result is wrong,
               as it would be after a pause that lost registers. (The right one comes by squaring, in a few steps.)
    out[1]  = %globaltimer (ns) at the start of thread 0 of block 0
    out[2]  = %globaltimer when its work was done

The stand-in GPU plays the same contract: iterations / 1000 microseconds of the card, for any grid.

    burn_traced(u64 iterations, u64 out, u64 stops, u64 capacity)

The same, and thread 0 looks at the clock all the while: where it jumps by more than 20 us the card was taken away in
mid-kernel. stops[0] counts such stops, stops[1] = 1 says that a reader looked, and the pairs (from, to) of the first
`capacity` stops follow, in ns. For drawing who held the card. The stand-in plays it as `burn`, and no reader looks.
"""

from __future__ import annotations

WRONG = 1 << 40  # what a wrong thread adds to out[0]
RESULT_BYTES = 24

_MULTIPLY, _ADD = 6364136223846793005, 1442695040888963407  # Knuth's MMIX

_BURN = f"""
    mad.lo.u64 %x, %x, {_MULTIPLY}, {_ADD};
    sub.u64 %left, %left, 1;
    setp.ne.u64 %p0, %left, 0;
    @%p0 bra WORK;
"""

_BURN_TRACED = f"""
    min.u64 %chunk, %left, 64;
    sub.u64 %left, %left, %chunk;
STEP:
    mad.lo.u64 %x, %x, {_MULTIPLY}, {_ADD};
    sub.u64 %chunk, %chunk, 1;
    setp.ne.u64 %p0, %chunk, 0;
    @%p0 bra STEP;
    setp.ne.u32 %p1, %id, 0;
    @%p1 bra NEXT;
    mov.u64 %now, %globaltimer;
    sub.u64 %t, %now, %last;
    setp.lt.u64 %p2, %t, 20000;
    @%p2 bra SEEN;
    atom.global.add.u64 %t, [%stops], 1;
    setp.ge.u64 %p3, %t, %capacity;
    @%p3 bra SEEN;
    shl.b64 %t, %t, 4;
    add.u64 %t, %t, %stops;
    st.global.u64 [%t+16], %last;
    st.global.u64 [%t+24], %now;
SEEN:
    mov.u64 %last, %now;
NEXT:
    setp.ne.u64 %p0, %left, 0;
    @%p0 bra WORK;
"""


def _entry(name: str, parameters: str, load: str, work: str) -> str:
    """One kernel around its inner loop."""
    return f"""
.visible .entry {name}(.param .u64 p_iterations, .param .u64 p_out{parameters})
{{
    .reg .pred %p<7>;
    .reg .b32  %id, %block, %threads, %thread;
    .reg .b64  %n, %out, %x, %x0, %begin, %end, %left, %mul, %add, %pm, %pa, %bit, %t;
    .reg .b64  %stops, %capacity, %chunk, %now, %last;

    ld.param.u64 %n, [p_iterations];
    ld.param.u64 %out, [p_out];
    {load}
    mov.u64 %begin, %globaltimer;
    mov.u64 %last, %begin;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %id, %block, %threads, %thread;
    cvt.u64.u32 %x0, %id;
    mov.u64 %x, %x0;
    mov.u64 %left, %n;
    setp.eq.u64 %p0, %left, 0;
    @%p0 bra WORKED;
WORK:{work}WORKED:
    mov.u64 %end, %globaltimer;
    setp.ne.u64 %p1, %out, 0;
    @%p1 bra REPORT;
    setp.eq.u64 %p2, %x, 42;
    @%p2 st.global.u64 [sink], %x;
    ret;
REPORT:
    mov.u64 %mul, 1;
    mov.u64 %add, 0;
    mov.u64 %pm, {_MULTIPLY};
    mov.u64 %pa, {_ADD};
    mov.u64 %left, %n;
POWER:
    setp.eq.u64 %p3, %left, 0;
    @%p3 bra COMPARE;
    and.b64 %bit, %left, 1;
    setp.eq.u64 %p4, %bit, 0;
    @%p4 bra SQUARE;
    mad.lo.u64 %add, %add, %pm, %pa;
    mul.lo.u64 %mul, %mul, %pm;
SQUARE:
    mad.lo.u64 %pa, %pa, %pm, %pa;
    mul.lo.u64 %pm, %pm, %pm;
    shr.u64 %left, %left, 1;
    bra POWER;
COMPARE:
    mad.lo.u64 %t, %x0, %mul, %add;
    setp.ne.u64 %p5, %t, %x;
    @%p5 red.global.add.u64 [%out], {WRONG};
    setp.ne.u32 %p6, %id, 0;
    @%p6 ret;
    st.global.u64 [%out+8], %begin;
    st.global.u64 [%out+16], %end;
    red.global.add.u64 [%out], 1;
    ret;
}}
"""


# `sink` keeps the compiler from dropping work whose result is not read.
PTX = (
    ".version 6.4\n.target sm_70\n.address_size 64\n\n.global .align 8 .u64 sink;\n"
    + _entry("burn", "", "", _BURN)
    + _entry(
        "burn_traced",
        ", .param .u64 p_stops, .param .u64 p_capacity",
        "ld.param.u64 %stops, [p_stops];\n    ld.param.u64 %capacity, [p_capacity];\n    st.global.u64 [%stops+8], 1;",
        _BURN_TRACED,
    )
).encode()
