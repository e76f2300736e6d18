//! Tables of jobs: one launch does the work of a kernel for all keys of a call.
//!
//! The layout of a table is that of `kernels/job.cuh`.

use smallvec::SmallVec;

use super::context::Device;
use super::mark::Mark;
use super::name::KernelName;
use super::reuse::Spares;
use super::reuse::pinned::PinnedBlock;
use super::reuse::scratch::ScratchBlock;
use super::reuse::tables::{self, TakenTable};
use super::stream::Stream;
use crate::error::{Result, fail};
use crate::kernel::{MAX_STATES, TILE};
use crate::tensor::DType;

/// Elements of a chunk, as in `kernels/job.cuh`; and of a chunk of a measure, as in
/// `kernels/norm.cuh`.
const CHUNK: usize = 4096;
const MEASURED_CHUNK: usize = 32 * TILE;

/// Rows of a chunk of a kernel that works on rows.
const ROWS: usize = 256;
/// Bytes of an address, of a constant, and of the two numbers of a block.
const WORD: usize = 8;

/// Order of the work of a call: each stage runs behind the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Values of other strides or float types become plain arrays; masters are made.
    Gather,
    /// Sums of squares, of tiles.
    Measure,
    /// Those of rows.
    Fold,
    /// Numbers of keys and rows that follow from them.
    Number,
    /// Sums and rules.
    Merge,
    /// Results go to outs of other strides or float types.
    Scatter,
}

/// The work of a kernel on one key.
#[derive(Debug, Clone, Copy)]
struct KernelJob {
    stage: Stage,
    kernel: KernelName,
    chunks: usize,
    count: usize,
    value: u64,
    states: [u64; MAX_STATES],
    inputs: u32,
    outs: u32,
    /// Where it begins in the list of addresses, and in that of constants.
    addresses: u32,
    constants: u32,
}

/// What a rule changes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RuleArrays {
    /// The value, or its master.
    pub(crate) value: u64,
    pub(crate) states: [u64; MAX_STATES],
}

/// The lists of a call, whose memory later calls use.
#[derive(Default)]
struct JobLists {
    jobs: Vec<KernelJob>,
    addresses: Vec<u64>,
    constants: Vec<f64>,
    /// The bytes of the table.
    text: Vec<u8>,
    /// Each a kernel, its blocks, and where the table has their numbers.
    launches: Vec<(u64, u32, usize)>,
}

thread_local! {
    static LISTS: Spares<JobLists> = const { Spares::new() };
}

/// The jobs of a call.
pub(crate) struct JobList {
    lists: JobLists,
    /// Once it has been prepared, unless there is no work.
    table: Option<JobTable>,
}

/// A table of jobs on the device.
struct JobTable {
    place: TablePlace,
    /// Where the addresses and the constants begin.
    starts: [usize; 2],
}

enum TablePlace {
    /// Room in pinned memory and on the device.
    New(PinnedBlock, ScratchBlock),
    /// The device has it from an earlier call.
    Kept(TakenTable),
}

impl Default for JobList {
    fn default() -> Self {
        Self { lists: Spares::take(&LISTS), table: None }
    }
}

impl Drop for JobList {
    fn drop(&mut self) {
        let mut lists = std::mem::take(&mut self.lists);
        lists.jobs.clear();
        lists.addresses.clear();
        lists.constants.clear();
        lists.text.clear();
        lists.launches.clear();
        Spares::put(&LISTS, lists);
    }
}

fn small(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| fail!(Unsupported, "a call of {number} parts is too long"))
}

/// What a job works on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JobWork<'a> {
    pub(crate) arrays: RuleArrays,
    pub(crate) inputs: &'a [u64],
    pub(crate) outs: &'a [u64],
    /// Extents, if its kernel has some.
    pub(crate) extents: &'a [u64],
    /// Where its numbers begin in the list of constants.
    pub(crate) constants: usize,
}

/// The arrays of a push of one key.
#[derive(Clone, Copy)]
pub(crate) struct KeyArrays<'a> {
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) arrays: RuleArrays,
    /// Whether the value is the master of an f16 or bf16 one, which is then among the outs.
    pub(crate) is_master: bool,
    pub(crate) inputs: &'a [u64],
    pub(crate) outs: &'a [u64],
}

impl<'a> KeyArrays<'a> {
    /// What a job works on that has these inputs and states, and other outs.
    pub(super) fn work(
        &self,
        outs: &'a [u64],
        extents: &'a [u64],
        constants: usize,
    ) -> JobWork<'a> {
        JobWork { arrays: self.arrays, inputs: self.inputs, outs, extents, constants }
    }
}

impl JobList {
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.jobs.is_empty()
    }

    /// The numbers of the formula whose job is added next.
    pub(crate) fn constants(&mut self) -> &mut Vec<f64> {
        &mut self.lists.constants
    }

    /// Adds a job of so many elements, which are so many chunks; one without elements is left out.
    fn add(
        &mut self,
        (stage, kernel): (Stage, KernelName),
        (count, chunks): (usize, usize),
        work: &JobWork<'_>,
    ) -> Result<()> {
        let JobWork { arrays, inputs, outs, extents, constants } = *work;
        if count > 0 {
            self.lists.jobs.push(KernelJob {
                stage,
                kernel,
                chunks,
                count,
                value: arrays.value,
                states: arrays.states,
                inputs: small(inputs.len())?,
                outs: small(outs.len())?,
                addresses: small(self.lists.addresses.len())?,
                constants: small(constants)?,
            });
            let addresses = &mut self.lists.addresses;
            [inputs, outs, extents].iter().for_each(|it| addresses.extend_from_slice(it));
        }
        Ok(())
    }

    /// Adds the sum of plain arrays, or the copy of one, to plain outs.
    pub(crate) fn sum(
        &mut self,
        dtype: DType,
        count: usize,
        inputs: &[u64],
        outs: &[u64],
    ) -> Result<()> {
        let (kernel, parts) = (KernelName::sum(dtype), count * dtype.parts());
        self.merge(kernel, parts, &JobWork { inputs, outs, ..JobWork::default() })
    }

    /// Adds the merge of the sum of plain arrays by a rule.
    pub(crate) fn merge(
        &mut self,
        kernel: KernelName,
        count: usize,
        work: &JobWork<'_>,
    ) -> Result<()> {
        self.add((Stage::Merge, kernel), (count, count.div_ceil(CHUNK)), work)
    }

    /// Adds a measure: the outs receive eight sums of squares of each tile.
    pub(crate) fn measure(
        &mut self,
        kernel: KernelName,
        (count, tiles): (usize, usize),
        work: &JobWork<'_>,
    ) -> Result<()> {
        let chunks = (tiles * TILE).div_ceil(MEASURED_CHUNK);
        self.add((Stage::Measure, kernel), (count, chunks), work)
    }

    /// Adds the sums of the tiles of each row, which has so many.
    pub(crate) fn fold(
        &mut self,
        (tiles, of_row, rows): (usize, usize, usize),
        sums: u64,
        to: u64,
    ) -> Result<()> {
        let arrays = RuleArrays { value: to, ..RuleArrays::default() };
        let (inputs, extents) = ([sums], [of_row as u64]);
        let work = JobWork { arrays, inputs: &inputs, extents: &extents, ..JobWork::default() };
        let kernel = KernelName::rule("norm", DType::F64, false);
        self.add((Stage::Fold, kernel), (tiles, rows.div_ceil(ROWS)), &work)
    }

    /// Adds the number of a key, from sums of so many rows, which is written to the list of
    /// constants.
    pub(crate) fn key_number(
        &mut self,
        kernel: KernelName,
        rows: usize,
        constant: usize,
        work: JobWork<'_>,
    ) -> Result<()> {
        let arrays = RuleArrays { value: constant as u64, ..RuleArrays::default() };
        self.add((Stage::Number, kernel), (rows, 1), &JobWork { arrays, ..work })
    }

    /// Adds the numbers of rows.
    pub(crate) fn row_numbers(
        &mut self,
        kernel: KernelName,
        rows: usize,
        work: &JobWork<'_>,
    ) -> Result<()> {
        self.add((Stage::Number, kernel), (rows, rows.div_ceil(ROWS)), work)
    }

    /// Adds a copy between arrays of any strides, from a dtype to another; None is row-major.
    pub(crate) fn copy(
        &mut self,
        stage: Stage,
        (dtype, to_dtype): (DType, DType),
        shape: &[i64],
        (from, from_strides): (u64, Option<&[i64]>),
        (to, to_strides): (u64, Option<&[i64]>),
    ) -> Result<()> {
        let (kernel, parts) = (KernelName::copy(dtype, to_dtype), dtype.parts() as u64);
        let extents = shape.iter().map(|&extent| u64::try_from(extent).unwrap_or(0));
        // The parts of an element are one more dimension.
        let extents: SmallVec<[u64; 4]> = extents.chain((parts > 1).then_some(parts)).collect();
        let count = usize::try_from(extents.iter().product::<u64>()).unwrap_or(0);
        // The kernel takes the innermost dimension first, and at least one.
        let dimensions = extents.len().max(1) as u64;
        let mut layout: SmallVec<[u64; 16]> = [from, to, dimensions].into_iter().collect();
        let mut plain = 1i64;
        for at in (0..extents.len()).rev() {
            let of_parts = |it: &[i64]| it.get(at).map_or(1, |it| it * parts.cast_signed());
            let stride = |strides: Option<&[i64]>| strides.map_or(plain, of_parts);
            let (source, target) = (stride(from_strides), stride(to_strides));
            layout.extend([extents[at], source.cast_unsigned(), target.cast_unsigned()]);
            plain = plain.wrapping_mul(extents[at].cast_signed());
        }
        if extents.is_empty() {
            layout.extend([1, 1, 1]);
        }
        // The source and the destination are its input and its out, the rest are extents.
        let (inputs, rest) = layout.split_at(1);
        let (outs, extents) = rest.split_at(1);
        let work = JobWork { inputs, outs, extents, ..JobWork::default() };
        self.add((stage, kernel), (count, count.div_ceil(CHUNK)), &work)
    }

    /// Loads the kernels and takes the memory of the table, so that queueing fails only with the
    /// device.
    pub(crate) fn prepare(&mut self, device: &'static Device, stream: &Stream) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let JobLists { jobs, addresses, constants, text, launches } = &mut self.lists;
        // Jobs of a kernel keep their order, which their addresses have.
        let place = |job: &KernelJob| (job.stage, job.kernel, job.addresses);
        jobs.sort_unstable_by_key(place);
        text.clear();
        launches.clear();
        jobs.iter().for_each(|job| job.encode(text));
        let first_address = text.len();
        addresses.iter().for_each(|it| text.extend(it.to_le_bytes()));
        let first_constant = text.len();
        constants.iter().for_each(|it| text.extend(it.to_le_bytes()));
        let mut first = 0;
        for jobs in jobs.chunk_by(|a, b| (a.stage, a.kernel) == (b.stage, b.kernel)) {
            let start = text.len();
            for (index, job) in jobs.iter().enumerate() {
                let index = small(first + index)?;
                for chunk in 0..small(job.chunks)? {
                    text.extend(index.to_le_bytes());
                    text.extend(chunk.to_le_bytes());
                }
            }
            first += jobs.len();
            let kernel = device.kernel(jobs[0].kernel)?;
            launches.push((kernel, small((text.len() - start) / WORD)?, start));
        }
        let starts = [first_address, first_constant];
        let place = if let Some(kept) = tables::take(device, text, stream) {
            TablePlace::Kept(kept)
        } else {
            let mut host = PinnedBlock::take(device, text.len())?;
            host.write(text);
            TablePlace::New(host, ScratchBlock::take(device, text.len(), stream)?)
        };
        self.table = Some(JobTable { place, starts });
        Ok(())
    }

    /// Queues the copy of a new table and a launch for each kernel, if it has been prepared. Its memory
    /// is to be given back behind them, with [`JobList::finish`].
    pub(crate) fn queue(&mut self, device: &'static Device, stream: &Stream) -> Result<()> {
        let Some(JobTable { place, starts }) = &mut self.table else { return Ok(()) };
        let (TablePlace::New(_, memory) | TablePlace::Kept(TakenTable { memory, .. })) = place;
        let start = memory.address();
        memory.note_queued();
        if let TablePlace::New(host, _) = place {
            host.upload(0..self.lists.text.len(), start, stream)?;
        }
        let [addresses, constants] = starts.map(|offset| start + offset as u64);
        for &(kernel, blocks, offset) in &self.lists.launches {
            let tables = [start, addresses, constants, start + offset as u64];
            device.launch(kernel, blocks, stream.handle(), &tables)?;
        }
        Ok(())
    }

    /// Whether there is memory to be given back.
    pub(crate) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Gives the memory of the table back with a mark at the end of the stream. A table that its kernels
    /// do not change stays for later calls.
    pub(crate) fn finish(&mut self, device: &Device, mark: &Mark, stream: &Stream) {
        let Some(JobTable { place, .. }) = self.table.take() else { return };
        let (mut host, memory) = match place {
            TablePlace::Kept(kept) => return tables::give_back(kept, mark, stream),
            TablePlace::New(host, memory) => (host, memory),
        };
        host.keep_until(mark);
        if self.lists.jobs.iter().any(|job| job.stage == Stage::Number) {
            memory.give(mark, stream);
        } else {
            tables::keep(device, &self.lists.text, memory, mark, stream);
        }
    }
}

impl KernelJob {
    /// Its bytes in a table.
    fn encode(&self, text: &mut Vec<u8>) {
        for number in [self.count as u64, self.value].iter().chain(&self.states) {
            text.extend(number.to_le_bytes());
        }
        for number in [self.inputs, self.outs, self.addresses, self.constants] {
            text.extend(number.to_le_bytes());
        }
    }
}
