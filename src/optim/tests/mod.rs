//! The formulas of all optimizers as sources of GPU kernels, and those kernels.

mod device;
mod sources;

use super::method::{Method, Passes, PushNumbers};
use super::options::RuleOptions;
use super::{METHODS, NORM_BLOCK};

/// Optimizers with options that together reach every formula.
const SETTINGS: &[(&str, &str)] = &[
    ("sgd", "learning_rate=0.1"),
    ("sgd", "learning_rate=0.1,wd=0.01,rescale_grad=0.25,clip_gradient=1.5"),
    ("sgd", "learning_rate=0.1,momentum=0.9"),
    ("momentum", "learning_rate=0.05,wd=0.001,clip_gradient=0.5"),
    ("nag", "learning_rate=0.1"),
    ("nag", "learning_rate=0.1,momentum=0.9,wd=0.01"),
    ("adam", ""),
    ("adam", "learning_rate=0.01,wd=0.1,clip_gradient=0.7,rescale_grad=3"),
    ("adamw", "wd=0.05"),
    ("adamax", ""),
    ("nadam", ""),
    ("adagrad", ""),
    ("adagrad", "wd=0.1"),
    ("groupadagrad", ""),
    ("groupadagrad", "wd=0.1,clip_gradient=0.3"),
    ("rmsprop", ""),
    ("rmsprop", "centered=true,wd=0.01,clip_weights=2.0"),
    ("adadelta", ""),
    ("ftrl", ""),
    ("ftrl", "learning_rate=0"),
    ("ftml", ""),
    ("signum", ""),
    ("signum", "momentum=0,wd=0.1"),
    ("signum", "wd_lh=0.01"),
    ("lamb", ""),
    ("lamb", "wd=0.1,clip_gradient=0.5,bias_correction=false"),
    ("lars", ""),
    ("lars", "momentum=0.9,wd=0.01"),
    ("dcasgd", ""),
    ("dcasgd", "momentum=0.9,wd=0.01"),
    ("lion", ""),
    ("lion", "wd=0.1"),
    ("test", ""),
];

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
