//! Collective calls: arrays without keys.
#![allow(unsafe_code, reason = "calls of the C library")]

use std::ptr::null_mut;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::lent::{Lent, Life, Role};
use crate::library::{Store, Tensor, function};
use crate::operation::{Function, Operation, carry_out};
use crate::pairs::Lender;
use crate::python::invalid;
use crate::store::{Handle, Store as PyStore, open};

type Tensors = *const Tensor;
type Ticket = *mut u64;

/// A C function, by its parameters.
#[derive(Clone, Copy)]
enum ExchangeFunction {
    AllReduce(unsafe extern "C" fn(Store, i32, Tensors, usize, Tensors, usize, Ticket) -> i32),
    Reduce(unsafe extern "C" fn(Store, i32, i32, Tensors, usize, Tensors, usize, Ticket) -> i32),
    ReduceScatter(unsafe extern "C" fn(Store, i32, Tensors, usize, Tensors, Ticket) -> i32),
    Broadcast(unsafe extern "C" fn(Store, i32, Tensors, usize, Ticket) -> i32),
    AllGather(unsafe extern "C" fn(Store, Tensors, Tensors, usize, Ticket) -> i32),
    Gather(unsafe extern "C" fn(Store, i32, Tensors, Tensors, usize, Ticket) -> i32),
    Scatter(unsafe extern "C" fn(Store, i32, Tensors, usize, Tensors, Ticket) -> i32),
    AllToAll(unsafe extern "C" fn(Store, Tensors, usize, Tensors, usize, Ticket) -> i32),
}

/// A collective call with its numbers.
#[derive(Clone, Copy)]
pub struct ExchangeCall {
    function: ExchangeFunction,
    reduction: i32,
    root: i32,
}

impl ExchangeCall {
    /// # Safety
    ///
    /// The store is open, the lists are complete, and the ticket is null or a place.
    pub unsafe fn call(
        self,
        store: Store,
        (values, count): (Tensors, usize),
        (outs, out_count): (Tensors, usize),
        ticket: Ticket,
    ) -> i32 {
        let Self { function, reduction, root } = self;
        // SAFETY: the caller's promise.
        unsafe {
            match function {
                ExchangeFunction::AllReduce(call) => {
                    call(store, reduction, values, count, outs, out_count, ticket)
                }
                ExchangeFunction::Reduce(call) => {
                    call(store, reduction, root, values, count, outs, out_count, ticket)
                }
                ExchangeFunction::ReduceScatter(call) => {
                    call(store, reduction, values, count, outs, ticket)
                }
                ExchangeFunction::Broadcast(call) => call(store, root, outs, out_count, ticket),
                ExchangeFunction::AllGather(call) => call(store, values, outs, out_count, ticket),
                ExchangeFunction::Gather(call) => {
                    call(store, root, values, outs, out_count, ticket)
                }
                ExchangeFunction::Scatter(call) => call(store, root, values, count, outs, ticket),
                ExchangeFunction::AllToAll(call) => {
                    call(store, values, count, outs, out_count, ticket)
                }
            }
        }
    }

    /// Whether the function takes one value, and one out.
    fn takes_one(self) -> (bool, bool) {
        use ExchangeFunction::{AllGather, Gather, ReduceScatter, Scatter};
        let one_value = matches!(self.function, AllGather(_) | Gather(_));
        (one_value, matches!(self.function, ReduceScatter(_) | Scatter(_)))
    }
}

/// A collective call of the library.
#[pyclass(frozen, module = "kvstore._native")]
pub struct Exchange {
    name: String,
    function: ExchangeFunction,
}

#[pymethods]
impl Exchange {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        let symbol = format!("kv_{name}");
        // SAFETY: the header declares these functions with these parameters.
        let function = unsafe {
            match name {
                "allreduce" => ExchangeFunction::AllReduce(function(&symbol)?),
                "reduce" => ExchangeFunction::Reduce(function(&symbol)?),
                "reduce_scatter" => ExchangeFunction::ReduceScatter(function(&symbol)?),
                "broadcast_from" => ExchangeFunction::Broadcast(function(&symbol)?),
                "allgather" => ExchangeFunction::AllGather(function(&symbol)?),
                "gather" => ExchangeFunction::Gather(function(&symbol)?),
                "scatter" => ExchangeFunction::Scatter(function(&symbol)?),
                "all_to_all" => ExchangeFunction::AllToAll(function(&symbol)?),
                _ => return Err(PyValueError::new_err(format!("{symbol} is no collective call"))),
            }
        };
        Ok(Self { name: name.to_owned(), function })
    }

    /// Makes the call. Values and outs are arrays or lists of them; without outs the values are written.
    fn run<'py>(
        &self,
        store: &Bound<'py, PyStore>,
        numbers: (i32, i32),
        values: Option<&Bound<'py, PyAny>>,
        outs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let handle = &open(store)?;
        let (function, lent) = self.describe(handle, numbers, (values, outs), Life::Call)?;
        carry_out(&lent, function, handle, 0, null_mut())
    }

    /// Describes the call for a ticket, without starting it.
    fn prepare<'py>(
        &self,
        store: &Bound<'py, PyStore>,
        numbers: (i32, i32),
        values: Option<&Bound<'py, PyAny>>,
        outs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Operation> {
        let handle = &open(store)?;
        let (function, lent) = self.describe(handle, numbers, (values, outs), Life::Ticket)?;
        Ok(Operation::new(function, handle, lent))
    }
}

impl Exchange {
    fn describe<'py>(
        &self,
        handle: &Bound<'py, Handle>,
        (reduction, root): (i32, i32),
        (values, outs): (Option<&Bound<'py, PyAny>>, Option<&Bound<'py, PyAny>>),
        life: Life,
    ) -> PyResult<(Function, Lent)> {
        let call = ExchangeCall { function: self.function, reduction, root };
        let mut lender = Lender::new(&self.name, handle, life);
        if let Some(values) = values {
            lender.lend_list(values, Role::Value)?;
        }
        lender.begin_second();
        match (outs, values) {
            (Some(outs), _) => lender.lend_list(outs, Role::Out)?,
            (None, Some(values)) if reduces_in_place(self.function) => {
                lender.lend_list(values, Role::ValueAndOut)?;
            }
            _ => {}
        }
        let lent = lender.finish();
        let [(_, _, count), (_, _, out_count)] = lent.lists();
        let (one_value, one_out) = call.takes_one();
        for (is_one, given, what) in [(one_value, count, "value"), (one_out, out_count, "out")] {
            if is_one && given != 1 {
                let text = format!("{}: {given} arrays, where one {what} is given", self.name);
                return Err(invalid(handle.py(), text));
            }
        }
        Ok((Function::Exchange(call), lent))
    }
}

/// Whether a call without outs writes into its values.
fn reduces_in_place(function: ExchangeFunction) -> bool {
    matches!(function, ExchangeFunction::AllReduce(_) | ExchangeFunction::Reduce(_))
}
