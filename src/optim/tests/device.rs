//! Rules and norms of GPU kernels, interpreted, against those of this processor.

use std::collections::BTreeSet;
use std::mem;

use super::{NORM_BLOCK, PUSHES, Passes, SETTINGS, drive};
use crate::kernel::interpreted::{CHUNK, Elements, Gpu, Job, Kernels, Place, mode};
use crate::kernel::{
    Isa, MAX_STATES, Meter, PartNumbers, Pass, Recording, Rule, RuleTarget, Squares, SumOrder,
    TILE, Traffic, Use,
};
use crate::optim::{KeyRule, RowRule};
use crate::tensor::DType;
use kvstore_protocol::testing::Random;

/// Elements of a chunk of a measure: 32 tiles, eight threads each.
const MEASURED: usize = 32 * TILE;

/// One key on this processor, and the kernels that do the same to copies of it.
struct Twin {
    kernels: Kernels,
    random: Random,
    case: String,
    /// Elements of a row, whose sums of squares are added up first.
    row: usize,
    has_rows: bool,
    stored: Elements,
    master: Option<Elements>,
    states: [Elements; MAX_STATES],
    inputs: Vec<Elements>,
    /// States of rows.
    history: Option<Vec<f64>>,
    outs: usize,
    compared: usize,
}

/// The arrays of a launch.
struct Places {
    value: Place,
    states: [Place; MAX_STATES],
    outs: Vec<Place>,
}

impl Twin {
    fn new(seed: u64, dtype: DType, with_master: bool, count: usize) -> Self {
        let mut random = Random::new(seed);
        let stored = Elements::random(&mut random, dtype, count);
        let full = dtype.full();
        let master = with_master.then(|| {
            let halves: Vec<u16> = stored.bits().map(|it| u16::try_from(it).unwrap()).collect();
            let mut numbers = vec![0.0; count];
            Isa::Scalar.widen(dtype, &mut numbers, &halves);
            Elements::new(full, numbers.into_iter().map(|it| it.to_bits().into()))
        });
        Self {
            kernels: Kernels::default(),
            random,
            case: String::new(),
            row: NORM_BLOCK,
            has_rows: false,
            stored,
            master,
            states: [(); MAX_STATES].map(|()| Elements::zeroed(full, count)),
            inputs: Vec::new(),
            history: None,
            outs: 0,
            compared: 0,
        }
    }

    fn count(&self) -> usize {
        self.stored.count
    }

    /// The mode of a kernel.
    fn kernel(&self, formula: &str) -> String {
        let suffix = if self.master.is_some() { "_master" } else { "" };
        format!("{formula}_{}{suffix}", mode(self.stored.dtype))
    }

    /// Copies the key into the memory of a GPU, with a job for a formula.
    fn job(&mut self, gpu: &mut Gpu, formula: &Recording) -> (Job, Places) {
        let random = &mut self.random;
        let mut shift = || if random.below(2) == 0 { 0 } else { random.index(4) };
        let inputs = self.inputs.iter().map(|it| gpu.put(it, shift()).address).collect();
        let empty = Elements::zeroed(self.stored.dtype, self.stored.count);
        let outs: Vec<_> = (0..self.outs).map(|_| gpu.put(&empty, shift())).collect();
        let value = gpu.put(self.master.as_ref().unwrap_or(&self.stored), shift());
        let states = self.states.each_ref().map(|it| gpu.put(it, shift()));
        let job = Job {
            count: self.stored.count,
            value: value.address,
            states: states.map(|it| it.address),
            inputs,
            outs: outs.iter().map(|it| it.address).collect(),
            constants: formula.constants.clone(),
            ..Job::default()
        };
        (job, Places { value, states, outs })
    }

    /// Makes a pass of a range on this processor.
    fn pass<T>(
        &mut self,
        (start, count): (usize, usize),
        work: impl FnOnce(&Pass<'_>, &RuleTarget) -> T,
    ) -> T {
        let dtype = self.stored.dtype;
        let size = dtype.size();
        let inputs: Vec<_> =
            self.inputs.iter().map(|it| it.as_ptr().wrapping_add(start * size)).collect();
        let at = |it: &mut Elements| {
            let size = it.dtype.size();
            it.as_mut_ptr().wrapping_add(start * size)
        };
        let states = self.states.each_mut().map(at);
        let stored = at(&mut self.stored);
        let master = self.master.as_mut().map(at);
        let outs = if master.is_some() { vec![stored] } else { vec![] };
        let (traffic, order) = (Traffic::Cached, SumOrder::Linear);
        let pass =
            Pass { dtype, outs: &outs, inputs: &inputs, count, traffic, order, divisor: None };
        work(&pass, &RuleTarget::new(master.unwrap_or(stored), master.is_some(), states))
    }

    /// Compares what a launch left with the key.
    fn compare(&mut self, gpu: &Gpu, places: &Places, states: usize) {
        let case = &self.case;
        let kept = self.master.as_ref().unwrap_or(&self.stored);
        assert_eq!(gpu.take(places.value).difference(kept), None, "{case}: value");
        for (state, (place, kept)) in places.states.iter().zip(&self.states).enumerate() {
            if state < states {
                let difference = gpu.take(*place).difference(kept);
                assert_eq!(difference, None, "{case}: state {state}");
            }
        }
        for (out, &place) in places.outs.iter().enumerate() {
            assert_eq!(gpu.take(place).difference(&self.stored), None, "{case}: out {out}");
        }
        self.compared += self.count() * (1 + states + places.outs.len());
    }

    /// Sums of squares of each row by two kernels: of tiles, and of rows.
    fn measure_on_gpu(&mut self, meter: &dyn Meter) -> (Gpu, Places, Vec<Place>) {
        let formula = meter.record();
        let (mut gpu, outs) = (Gpu::default(), mem::replace(&mut self.outs, 0));
        let (mut job, places) = self.job(&mut gpu, &formula);
        self.outs = outs;
        let rows = self.count().div_ceil(self.row);
        let tiles = self.row.div_ceil(TILE);
        let all = (0..rows).map(|row| (self.count() - row * self.row).min(self.row).div_ceil(TILE));
        let all: usize = all.sum();
        let with_value = formula.usage == Use::Measure { with_value: true };
        let (mut sums, mut results) = (Vec::new(), Vec::new());
        for _ in 0..=usize::from(with_value) {
            let [tile, row] =
                [8 * all, rows].map(|count| gpu.put(&Elements::zeroed(DType::F64, count), 0));
            sums.push(tile);
            results.push(row);
        }
        job.outs = sums.iter().map(|it| it.address).collect();
        job.extents = vec![self.row as u64];
        // All tiles but those that a shorter last row lacks.
        job.units = Some(all * TILE);
        let (name, seed) = (self.kernel(formula.name), self.random.next());
        gpu.launch(&mut self.kernels, &name, &[job], MEASURED, seed);
        for (tile, row) in sums.iter().zip(&results) {
            let job = Job {
                count: all,
                units: Some(rows),
                value: row.address,
                inputs: vec![tile.address],
                extents: vec![tiles as u64],
                ..Job::default()
            };
            gpu.launch(&mut self.kernels, "norm_f64", &[job], 256, seed);
        }
        (gpu, places, results)
    }

    /// The same on this processor.
    fn measure_rows(&mut self, meter: &dyn Meter) -> Vec<Squares> {
        let mut rows = Vec::new();
        for start in (0..self.count()).step_by(self.row) {
            let end = self.count().min(start + self.row);
            let mut sums = Squares::default();
            for tile in (start..end).step_by(TILE) {
                let range = (tile, TILE.min(end - tile));
                self.pass(range, |pass, target| {
                    let mut add = |squares| sums += squares;
                    Isa::Scalar.measure_planned(meter, pass, target, TILE, &mut add);
                });
            }
            rows.push(sums);
        }
        rows
    }
}

impl Twin {
    /// Measures all rows by both, and compares; returns the sums on the GPU and on this processor.
    fn measure(&mut self, meter: &dyn Meter) -> (Gpu, Vec<Place>, Vec<Squares>) {
        let (gpu, places, results) = self.measure_on_gpu(meter);
        let rows = self.measure_rows(meter);
        self.compare(&gpu, &places, meter.record().states);
        let parts: [fn(&Squares) -> f64; 2] = [|it| it.measured, |it| it.value];
        for (row, part) in results.iter().zip(parts) {
            let of_rows = Elements::new(DType::F64, rows.iter().map(|it| part(it).to_bits()));
            assert_eq!(gpu.take(*row).difference(&of_rows), None, "{}: rows", self.case);
        }
        (gpu, results, rows)
    }

    /// Merges by a rule whose first state is a number of each row.
    fn merge_numbers(&mut self, rule: &dyn Rule, numbers: &[f64]) {
        let formula = rule.record();
        let (mut gpu, full) = (Gpu::default(), self.stored.dtype.full());
        let (mut job, places) = self.job(&mut gpu, &formula);
        let rounded = Elements::new(full, numbers.iter().map(|&it| bits(full, it)));
        job.states[0] = gpu.put(&rounded, 1).address;
        job.extents = vec![self.row as u64];
        let (name, seed) = (self.kernel(formula.name), self.random.next());
        gpu.launch(&mut self.kernels, &name, &[job], CHUNK, seed);
        let isa = Isa::choose("auto").unwrap();
        for (row, number) in numbers.iter().enumerate() {
            let (start, end) = (row * self.row, self.count().min((row + 1) * self.row));
            for tile in (start..end).step_by(TILE) {
                let count = TILE.min(end - tile);
                let parts = PartNumbers { numbers: &[*number], length: TILE };
                self.pass((tile, count), |pass, target| {
                    isa.merge_parts_planned(rule, pass, target, parts);
                });
            }
        }
        self.compare(&gpu, &places, 0);
    }
}

/// The bits of a number, rounded to f32 or f64.
#[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn bits(dtype: DType, number: f64) -> u64 {
    if dtype == DType::F64 { number.to_bits() } else { (number as f32).to_bits().into() }
}

impl Passes for Twin {
    fn merge(&mut self, rule: &dyn Rule) {
        let formula = rule.record();
        let mut gpu = Gpu::default();
        let (job, places) = self.job(&mut gpu, &formula);
        let (name, seed) = (self.kernel(formula.name), self.random.next());
        gpu.launch(&mut self.kernels, &name, &[job], CHUNK, seed);
        let isa = Isa::choose("auto").unwrap();
        let all = (0, self.count());
        self.pass(all, |pass, target| isa.merge_planned(rule, pass, target));
        self.compare(&gpu, &places, formula.states);
    }

    fn merge_key(&mut self, key: &dyn KeyRule) {
        let (mut gpu, results, rows) = self.measure(key.meter());
        let mut squares = Squares::default();
        rows.iter().for_each(|row| squares += *row);
        let expected = key.norm().number(squares, &mut 0.0);
        let formula = key.norm().record();
        // The number becomes the one behind those of the formula.
        let mut constants = formula.constants.clone();
        constants.push(0.0);
        let job = Job {
            count: rows.len(),
            units: Some(1),
            value: formula.constants.len() as u64,
            inputs: results.iter().map(|it| it.address).collect(),
            constants,
            ..Job::default()
        };
        let name = format!("{}_f64", formula.name);
        let seed = self.random.next();
        let numbers = gpu.launch(&mut self.kernels, &name, &[job], 1, seed);
        let found = Elements::new(DType::F64, [numbers[formula.constants.len()].to_bits()]);
        let expected_bits = Elements::new(DType::F64, [expected.to_bits()]);
        assert_eq!(found.difference(&expected_bits), None, "{}: number", self.case);
        key.merge(expected, &mut |rule| self.merge(rule));
    }

    fn has_rows(&self) -> bool {
        self.has_rows
    }

    fn merge_rows(&mut self, rows: &dyn RowRule) {
        let (mut gpu, results, squares) = self.measure(rows.meter());
        let formula = rows.norm().record();
        let (full, count) = (self.stored.dtype.full(), squares.len());
        let length = f64::from(u32::try_from(self.row).unwrap());
        let before = self.history.get_or_insert_with(|| vec![0.0; count]).clone();
        let state = gpu.put(&Elements::new(full, before.iter().map(|&it| bits(full, it))), 1);
        let place = gpu.put(&Elements::zeroed(full, count), 0);
        let job = Job {
            count,
            states: [state.address, 0, 0],
            inputs: vec![results[0].address],
            outs: vec![place.address],
            constants: [&[length], &formula.constants[..]].concat(),
            ..Job::default()
        };
        let (name, seed) = (format!("{}_{}", formula.name, mode(full)), self.random.next());
        gpu.launch(&mut self.kernels, &name, &[job], 256, seed);
        let mut histories = before;
        let numbers = squares.iter().zip(&mut histories).map(|(it, history)| {
            let mean = Squares { measured: it.measured / length, value: 0.0 };
            let number = rows.norm().number(mean, history);
            if full == DType::F32 {
                *history = f64::from(f32::from_bits(u32::try_from(bits(full, *history)).unwrap()));
            }
            number
        });
        let numbers = numbers.collect::<Vec<_>>();
        for (place, expected) in [(state, &histories), (place, &numbers)] {
            let expected = Elements::new(full, expected.iter().map(|&it| bits(full, it)));
            assert_eq!(gpu.take(place).difference(&expected), None, "{}: numbers", self.case);
        }
        self.history = Some(histories);
        self.merge_numbers(rows.rule(), &numbers);
    }
}

const MODES: [(DType, bool); 6] = [
    (DType::F32, false),
    (DType::F64, false),
    (DType::F16, false),
    (DType::BF16, false),
    (DType::F16, true),
    (DType::BF16, true),
];

/// Elements of most cases: whole groups, and a rest.
const COUNT: usize = 203;

#[test]
fn rules_and_norms_of_gpu_kernels_have_the_bits_of_this_processor() {
    let (mut kernels, mut compared) = (Kernels::default(), 0);
    for (setting, (name, params)) in SETTINGS.iter().enumerate() {
        for (dtype, with_master) in MODES {
            for inputs in [1, 2, 3] {
                let mut twin = Twin::new(setting as u64, dtype, with_master, COUNT);
                twin.kernels = mem::take(&mut kernels);
                twin.case = format!("{name} {params}, {}, {inputs} inputs", twin.kernel(""));
                // Short rows, so that there are several.
                twin.row = 64;
                drive(name, params, PUSHES, |method, push| {
                    let random = |_| Elements::random(&mut twin.random, dtype, COUNT);
                    twin.inputs = (0..inputs).map(random).collect();
                    twin.outs = twin.random.index(3);
                    twin.has_rows = inputs == 2;
                    method.push(push, &mut twin);
                });
                compared += twin.compared;
                kernels = twin.kernels;
            }
        }
    }
    assert!(compared > 2_000_000, "{compared} elements compared");
    let names = kernels.names();
    let missing: Vec<_> = kernels_of_formulas().filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "kernels that did not run: {missing:?}");
}

/// The names of all kernels of formulas.
fn kernels_of_formulas() -> impl Iterator<Item = String> {
    let modes = MODES.map(|(dtype, with_master)| {
        mode(dtype).to_owned() + if with_master { "_master" } else { "" }
    });
    let named = |list: &str, modes: &[String]| -> Vec<String> {
        let names = super::sources::names(&[list]).into_iter();
        names.flat_map(|name| modes.iter().map(move |mode| format!("{name}_{mode}"))).collect()
    };
    let by_mode = ["FORMULAS", "MEASURED", "ROW_FORMULAS"].map(|list| named(list, &modes));
    let numbers = [("KEY_NUMBERS", &["f64".into()][..]), ("ROW_NUMBERS", &modes[..2])];
    by_mode.into_iter().chain(numbers.map(|(list, modes)| named(list, modes))).flatten()
}

#[test]
fn norms_of_long_keys_and_of_long_rows_have_the_bits_of_this_processor() {
    for (name, row, count) in [
        ("lars", NORM_BLOCK, 2 * NORM_BLOCK + 700),
        ("groupadagrad", 1100, 12 * 1100),
        ("groupadagrad", 5000, 3 * 5000),
    ] {
        let mut twin = Twin::new(9, DType::F32, false, count);
        (twin.case, twin.row, twin.has_rows) = (name.into(), row, name == "groupadagrad");
        twin.inputs = vec![Elements::random(&mut twin.random, DType::F32, count)];
        drive(name, "", 1, |method, push| method.push(push, &mut twin));
    }
}

/// With `test` and a master of -0.0, the master becomes the sum, and the out the rounded master.
#[test]
fn every_f16_and_every_bf16_is_widened_and_narrowed_as_by_this_processor() {
    for dtype in [DType::F16, DType::BF16] {
        let all = Elements::new(dtype, 0..1 << 16);
        let mut twin = Twin::new(1, dtype, true, all.count);
        (twin.case, twin.inputs, twin.outs) = (twin.kernel("all"), vec![all], 1);
        let zeros = Elements::new(DType::F32, vec![0x8000_0000; 1 << 16]);
        twin.master = Some(zeros);
        drive("test", "", 1, |method, push| method.push(push, &mut twin));
        assert_eq!(twin.stored.difference(&twin.inputs[0]), None);
        // Numbers between those, and halfway between them.
        let ends: [u64; 3] = [0, 0x8000, 0xFFFF];
        let shift = if dtype == DType::F16 { 13 } else { 16 };
        let wide = twin.master.take().unwrap();
        let between =
            wide.bits().enumerate().map(|(index, bits)| bits | ends[index % 3] >> (16 - shift));
        twin.master = Some(Elements::new(DType::F32, between));
        drive("ftrl", "learning_rate=0", 1, |method, push| method.push(push, &mut twin));
    }
}

#[test]
fn every_kernel_has_a_file_and_there_are_no_other_files() {
    let folder = format!("{}/src/device/ptx", env!("CARGO_MANIFEST_DIR"));
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut kernels: BTreeSet<String> = kernels_of_formulas().collect();
    let floats = ["f16", "bf16", "f32", "f64"];
    let pairs = floats.into_iter().flat_map(|from| floats.map(|to| (from, to)));
    kernels.extend(pairs.filter(|it| it.0 != it.1).map(|it| format!("copy_{}_{}", it.0, it.1)));
    kernels.extend([8, 16, 32, 64].map(|bits| format!("copy_{bits}")));
    kernels.extend(
        floats.into_iter().chain(["i8", "i16", "i32", "i64"]).map(|it| format!("assign_{it}")),
    );
    kernels.insert("norm_f64".into());
    assert_eq!(files, kernels.iter().map(|name| format!("{name}.ptx")).collect());
}
