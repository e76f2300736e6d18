//! Planned faults: `function:count=what`, several with commas between them.

use crate::error::Code;

/// What happens at the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The call returns this error. A sticky error is returned by all later calls, too.
    Now(Code),
    /// The call succeeds; a sticky error follows when the stream runs.
    Late(Code),
    /// The call succeeds; the stream hangs from there on.
    Hang,
}

/// A fault of the call with this number, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    function: String,
    call: u64,
    what: What,
}

/// `719`, `late719` or `hang`.
fn what(text: &str) -> Option<What> {
    if text == "hang" {
        return Some(What::Hang);
    }
    let late = text.strip_prefix("late");
    let code = Code(late.unwrap_or(text).parse().ok()?);
    Some(if late.is_some() { What::Late(code) } else { What::Now(code) })
}

pub(crate) fn parse(text: &str) -> Vec<Planned> {
    let one = |text: &str| {
        let (function, rest) = text.trim().split_once(':')?;
        let (call, text) = rest.split_once('=')?;
        let (function, call) = (function.to_owned(), call.parse().ok()?);
        Some(Planned { function, call, what: what(text)? })
    };
    text.split(',').filter_map(one).collect()
}

pub(crate) fn take(planned: &mut Vec<Planned>, function: &str, call: u64) -> Option<What> {
    let index = planned.iter().position(|it| it.function == function && it.call == call)?;
    Some(planned.swap_remove(index).what)
}

#[cfg(test)]
mod tests {
    use super::{Code, What, parse, take};

    #[test]
    fn a_plan_names_functions_calls_and_errors() {
        let mut planned = parse("cuLaunchKernel:3=late719, cuMemAlloc_v2:1=2,cuStreamQuery:1=hang");
        assert_eq!(planned.len(), 3);
        assert_eq!(take(&mut planned, "cuLaunchKernel", 2), None);
        assert_eq!(take(&mut planned, "cuLaunchKernel", 3), Some(What::Late(Code(719))));
        assert_eq!(take(&mut planned, "cuMemAlloc_v2", 1), Some(What::Now(Code::OUT_OF_MEMORY)));
        assert_eq!(take(&mut planned, "cuMemAlloc_v2", 1), None);
        assert_eq!(take(&mut planned, "cuStreamQuery", 1), Some(What::Hang));
        assert!(parse("").is_empty() && parse("cuInit=3").is_empty());
    }
}
