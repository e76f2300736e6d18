//! GPUs: the driver, each GPU with a kernel of the library, and access between them.

use std::env;

use kvstore::{ErrorKind, GpuProbe, GpuReport};

use super::case::DoctorContext;
use super::{CheckResult, Finding, bad, skipped};
use crate::observe::show::units;

/// What the text of an error begins with if there is no driver.
const NO_DRIVER: &str = "the CUDA driver cannot be opened";
/// The status of a driver that shows no GPU to this process.
const NO_DEVICE: &str = "CUDA_ERROR_NO_DEVICE";

/// Whether GPUs may be missing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuWishes {
    /// Whether the option `cuda` names a driver.
    pub(crate) names_driver: bool,
    /// Whether `CUDA_VISIBLE_DEVICES` hides all GPUs.
    pub(crate) hides_all: bool,
}

impl GpuWishes {
    fn of(case: &DoctorContext) -> Self {
        let visible = env::var("CUDA_VISIBLE_DEVICES");
        Self {
            names_driver: case.option("cuda").is_some_and(|text| text != "auto"),
            hides_all: visible.is_ok_and(|text| matches!(text.trim(), "" | "-1")),
        }
    }
}

/// An error as a finding: its text behind the first semicolon is the remedy.
fn finding(text: &str) -> Finding {
    let (found, todo) = text.split_once("; ").unwrap_or((text, ""));
    bad(found, if todo.is_empty() { "see nvidia-smi" } else { todo })
}

/// Whether there is a driver that can be used. A machine without one can use host memory alone.
pub(crate) fn driver(case: &mut DoctorContext) -> CheckResult {
    let report = kvstore::examine_gpus(&case.config);
    let report =
        report.map_err(|error| judge_driver(error.kind(), error.message(), GpuWishes::of(case)))?;
    let ((major, minor), count) = (report.version, report.gpus.len());
    case.gpus = Some(report);
    let gpus = if count == 1 { "1 GPU" } else { &format!("{count} GPUs") };
    Ok(format!("a driver of CUDA {major}.{minor} with {gpus}"))
}

pub(crate) fn judge_driver(kind: ErrorKind, text: &str, wishes: GpuWishes) -> Finding {
    let may_be_missing = match kind {
        ErrorKind::Device if text.starts_with(NO_DRIVER) => !wishes.names_driver,
        ErrorKind::Device if text.contains(NO_DEVICE) => wishes.hides_all,
        ErrorKind::Device => false,
        // With `cuda=no`; or the check of options has reported it.
        _ => true,
    };
    if may_be_missing { skipped(text) } else { finding(text) }
}

/// Whether each GPU compiles and runs a kernel of the library.
pub(crate) fn gpus(case: &mut DoctorContext) -> CheckResult {
    let report = case.gpus.as_ref().ok_or_else(|| skipped("no driver can be used"))?;
    judge_gpus(&report.gpus)
}

pub(crate) fn judge_gpus(gpus: &[GpuProbe]) -> CheckResult {
    let mut lines = Vec::new();
    for gpu in gpus {
        let (number, name, (major, minor)) = (gpu.number, &gpu.name, gpu.capability);
        let state = match &gpu.state {
            Ok(state) => state,
            Err(error) => return Err(finding(error.message())),
        };
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let [free, all] = [state.memory.0, state.memory.1].map(|bytes| units::bytes(bytes as f64));
        let load = units::micros(u64::try_from(state.load.as_micros()).unwrap_or(u64::MAX));
        lines.push(format!(
            "GPU {number} ({name}, compute capability {major}.{minor}, {free} of {all} free) has loaded \
             a kernel in {load}, and its sums are right"
        ));
    }
    Ok(lines.join("\n      "))
}

/// Which GPUs can access each other's memory.
pub(crate) fn peers(case: &mut DoctorContext) -> CheckResult {
    let report = case.gpus.as_ref().ok_or_else(|| skipped("no driver can be used"))?;
    judge_peers(report)
}

pub(crate) fn judge_peers(report: &GpuReport) -> CheckResult {
    let count = report.gpus.len();
    let all = count * count.saturating_sub(1) / 2;
    let pairs = report.peers.iter().map(|(a, b)| format!("{a} and {b}")).collect::<Vec<_>>();
    match report.peers.len() {
        _ if all == 0 => Err(skipped("there is one GPU")),
        reached if reached == all => Ok(format!("all {count} GPUs can access each other's memory")),
        0 => Ok("no GPU can access another's memory: copies go through that of the host".into()),
        _ => Ok(format!(
            "GPUs {} can access each other's memory; other copies go through that of the host",
            pairs.join(", ")
        )),
    }
}
