//! The optimizers that the library has.

/// The names of all rules.
pub const RULES: &[&str] = &[
    "sgd",
    "momentum",
    "nag",
    "adam",
    "adamw",
    "adamax",
    "nadam",
    "adagrad",
    "groupadagrad",
    "rmsprop",
    "adadelta",
    "ftrl",
    "ftml",
    "signum",
    "lamb",
    "lars",
    "dcasgd",
    "lion",
    "test",
];
