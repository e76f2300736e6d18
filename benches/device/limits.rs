//! What the GPU can do without the library: copies by the driver and by a plain kernel.

use std::ffi::CStr;
use std::time::Instant;

use crate::gpu;
use crate::timing::Subject;

/// Copies 16 bytes for each thread.
const COPY: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry copy16(
    .param .u64 from,
    .param .u64 to,
    .param .u64 groups
)
.maxntid 256, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %d<10>;
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [to];
    ld.param.u64 %d3, [groups];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d4, %r4;
    setp.ge.u64 %p1, %d4, %d3;
    @%p1 bra $END;
    shl.b64 %d5, %d4, 4;
    add.s64 %d6, %d1, %d5;
    add.s64 %d7, %d2, %d5;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d6];
    st.global.v4.u32 [%d7], {%r5, %r6, %r7, %r8};
$END:
    ret;
}
";
const THREADS: u32 = 256;

/// Runs work on the legacy stream so many times, and tells the seconds of one run, until the GPU is
/// done.
pub fn queued<'a>(work: impl Fn() + 'a) -> Subject<'a> {
    Box::new(move |repeats| {
        gpu::stream_wait(1);
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        gpu::stream_wait(1);
        start.elapsed().as_secs_f64() / f64::from(repeats)
    })
}

/// The time that the host spends in each run, with the GPU idle before it.
pub fn on_host<'a>(work: impl Fn() + 'a) -> Subject<'a> {
    Box::new(move |repeats| {
        let mut seconds = 0.0;
        for _ in 0..repeats {
            let start = Instant::now();
            work();
            seconds += start.elapsed().as_secs_f64();
            gpu::stream_wait(1);
        }
        seconds / f64::from(repeats)
    })
}

/// The copies that are the limit of memory bandwidth, and the bytes that each reads and writes.
pub struct Copies {
    from: u64,
    to: u64,
    bytes: usize,
    kernel: u64,
}

impl Copies {
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(16);
        let [from, to] = [0, 1].map(|_| gpu::memory(bytes));
        assert_eq!(gpu::fill(from, 1, bytes, 1), 0);
        Self { from, to, bytes, kernel: gpu::kernel(COPY, c"copy16") }
    }

    /// Bytes read and written.
    pub fn moved(&self) -> f64 {
        2.0 * self.bytes as f64
    }

    pub fn by_driver(&self) -> Subject<'_> {
        queued(|| assert_eq!(gpu::copy(self.to, self.from, self.bytes, 1), 0))
    }

    pub fn by_kernel(&self) -> Subject<'_> {
        let groups = self.bytes / 16;
        let blocks = groups.div_ceil(THREADS as usize) as u32;
        let arguments = [self.from, self.to, groups as u64];
        queued(move || assert_eq!(gpu::run(self.kernel, blocks, THREADS, 1, &arguments), 0))
    }
}

/// A block of pinned memory and one of the GPU.
pub struct Staged {
    pub host: u64,
    pub device: u64,
    bytes: usize,
}

impl Staged {
    pub fn new(bytes: usize) -> Self {
        let device = gpu::memory(bytes);
        assert_eq!(gpu::fill(device, 1, bytes, 1), 0);
        Self { host: gpu::pinned(bytes), device, bytes }
    }

    pub fn to_device(&self) -> Subject<'_> {
        queued(|| assert_eq!(gpu::to_device(self.device, self.host, self.bytes, 1), 0))
    }

    pub fn to_host(&self) -> Subject<'_> {
        queued(|| assert_eq!(gpu::to_host(self.host, self.device, self.bytes, 1), 0))
    }
}
