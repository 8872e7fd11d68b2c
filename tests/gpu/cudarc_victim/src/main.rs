//! A Rust program on cudarc's safe API: it drops one slice, leaks another, and prints the leaked one.

use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DriverError};
use std::sync::Arc;

#[inline(never)]
fn leaks_a_slice(stream: &Arc<CudaStream>) -> Result<u64, DriverError> {
    let slice = stream.alloc_zeros::<f32>(12_345)?; // site: cudarc
    let address = slice.device_ptr(stream).0;
    std::mem::forget(slice);
    Ok(address)
}

fn main() -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let dropped = stream.clone_htod(&[1.0f32; 1000])?;
    let sum: f32 = stream.clone_dtoh(&dropped)?.iter().sum();
    drop(dropped);
    let address = leaks_a_slice(&stream)?;
    stream.synchronize()?;
    println!("RESULT sum {sum}");
    println!("LIVE {} cudarc {} {address:#x} 49380 49380", std::process::id(), if context.has_async_alloc() { "async" } else { "device" });
    Ok(())
}
