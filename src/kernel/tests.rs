//! Every build of the kernels against scalar loops.

use super::Isa;

#[test]
fn the_scalar_build_is_always_available() {
    assert!(Isa::Scalar.is_available());
}
