//! The formulas of all optimizers as sources of GPU kernels, and those kernels.

mod device;
mod settings;
mod sources;

use super::method::{Method, Passes, PushNumbers};
use super::options::RuleOptions;
use super::{METHODS, NORM_BLOCK};
use settings::SETTINGS;

/// Pushes of each setting.
const PUSHES: u64 = 6;

/// Prepares some pushes of a key, and passes each to `push`.
fn drive(
    name: &str,
    params: &str,
    pushes: u64,
    mut push: impl FnMut(&dyn Method, &mut PushNumbers<'_>),
) {
    let method = *METHODS.iter().find(|method| method.name() == name).unwrap();
    let mut options = RuleOptions::new(method.options());
    options.parse(params).unwrap();
    let mut carried = 0.0;
    for count in 0..pushes {
        let mut numbers = PushNumbers::new(&options, count, 1.0, 1.0);
        numbers.carried = carried;
        push(method, &mut numbers);
        carried = numbers.carried;
    }
}
