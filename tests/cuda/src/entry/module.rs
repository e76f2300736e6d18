//! Modules, kernels and launches.

use super::functions;
use super::pointers::{Argument, In, Out, Text};
use crate::error::Code;
use crate::ptx::Launch;

/// Options of the compiler: where its log of errors goes, and the length of that place.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

/// Puts the log of errors where the options say.
fn put_log(count: u32, options: &In<u32>, values: &In<Argument>, message: &str) {
    let value_of = |wanted: u32| {
        let found = (0..count as usize).find(|index| options.get(*index) == Ok(wanted))?;
        values.get(found).ok()
    };
    if let (Some(log), Some(bytes)) = (value_of(ERROR_LOG), value_of(ERROR_LOG_BYTES)) {
        let room = bytes.value().saturating_sub(1).min(message.len());
        if bytes.value() > 0 && log.value() != 0 {
            let text: Vec<u8> = message.bytes().take(room).chain([0]).collect();
            log.out::<u8>().set_all(&text);
        }
    }
}

functions! {
    fn cuModuleLoadDataEx(
        module: Out<u64>,
        image: Text,
        count: u32,
        options: In<u32>,
        values: In<Argument>,
    ) |driver| {
        let device = driver.current()?;
        let loaded = driver.load(device, image.get()?);
        module.set(loaded.map_err(|(code, message)| {
            put_log(count, &options, &values, &message);
            driver.machine.message = message;
            code
        })?)?;
    }

    fn cuModuleUnload(module: u64) |driver| {
        driver.current()?;
        driver.unload(module)?;
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) |driver| {
        driver.current()?;
        function.set(driver.find_function(module, name.get()?)?)?;
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: u64) |driver| {
        driver.current()?;
        let function = driver.function(function)?;
        let kernel = &function.module.kernels()[function.kernel];
        let (major, minor) = function.module.version();
        let number = match attribute {
            0 => kernel.max_threads().unwrap_or(1024),
            // Bytes of shared, constant and local memory.
            1..=3 => 0,
            // Registers of a thread.
            4 => 32,
            5 => 10 * major + minor,
            6 => 80,
            _ => return Err(Code::INVALID_VALUE),
        };
        value.set(i32::try_from(number).unwrap_or(i32::MAX))?;
    }

    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        arguments: In<Argument>,
        extra: In<u8>,
    ) |driver| {
        if !extra.is_null() || shared != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // The driver copies the arguments at the call.
        let kernel = driver.function(function)?;
        let parameters = kernel.module.kernels()[kernel.kernel].parameters().iter().enumerate();
        let numbers = parameters.map(|(index, bytes)| arguments.get(index)?.number(*bytes));
        let numbers = numbers.collect::<Result<Vec<u64>, Code>>()?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        driver.launch(function, Launch { grid, block, order: 0 }, stream, numbers)?;
    }
}
