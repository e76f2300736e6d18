//! The functions of the driver as C calls them.

mod context;
mod copy;
mod device;
mod memory;
mod module;
mod pointers;
mod stand_in;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::{self, Driver};
use crate::error::{Code, Result};

/// Runs the body of a function. No panic crosses the border to C.
fn guard(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<()>) -> u32 {
    let call = || driver::with(|driver| driver.enter(name).and_then(|()| body(driver)));
    let status = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Code::UNKNOWN));
    status.err().unwrap_or(Code::SUCCESS).0
}

/// Functions that begin by `|driver|`.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        #[allow(unsafe_code, reason = "the name is exported")]
        // SAFETY: programs that link or open this library mean this function by the name.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> u32 {
            super::guard(stringify!($name), |$driver| {
                $body
                #[allow(unreachable_code, reason = "some bodies end with an error")]
                Ok(())
            })
        }
    )*};
}
use functions;

#[cfg(test)]
mod tests {
    use super::{Code, guard};

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guard("test", |_| panic!("planned")), Code::UNKNOWN.0);
        assert_eq!(guard("test", |_| Ok(())), Code::SUCCESS.0, "the next call works");
        assert_eq!(guard("test", |_| Err(Code::NOT_FOUND)), 500);
    }
}
