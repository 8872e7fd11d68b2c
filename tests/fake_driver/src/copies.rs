//! Copies and fills: done immediately, on the calling thread; they fail where a kernel would fault.
//!
//! Device memory is readable host memory here, so contents survive a round trip. Copies between arrays check their
//! handles and move nothing.

use crate::arguments::In;
use crate::driver::Driver;
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::ffi::{c_uint, c_void};

impl Driver {
    /// Device side of a copy: must lie wholly inside memory known to CUDA.
    fn inside(&self, address: u64, bytes: usize) -> Outcome<*mut u8> {
        let (start, length) = self.range_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let end = address.checked_add(bytes as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if end > start + length {
            Err(CUDA_ERROR_INVALID_VALUE)
        } else {
            Ok(address as *mut u8)
        }
    }

    /// Either side of a copy whose direction follows from the addresses: any other address is host memory.
    fn anywhere(&self, address: u64, bytes: usize) -> Outcome<*mut u8> {
        if address == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.range_at(address).is_some() {
            self.inside(address, bytes)
        } else {
            Ok(address as *mut u8)
        }
    }

    fn copy(
        &mut self,
        to: Outcome<*mut u8>,
        from: Outcome<*mut u8>,
        bytes: usize,
        stream: Option<CUstream>,
    ) -> Outcome {
        self.current()?;
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = (to?, from?);
        match stream {
            None => self.refuse_while_capturing()?,
            Some(stream) => {
                self.check_stream(stream)?;
                if self.capture_of(stream).is_some() {
                    self.note_captured(stream, 1);
                    return Ok(());
                }
            }
        }
        // SAFETY: the device side lies inside memory of this driver that is mapped readable and writable; the host
        // side is the caller's, who promises `bytes` bytes there, as for the real driver.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }

    fn fill<T: Copy>(&mut self, address: u64, value: T, count: usize, stream: Option<CUstream>) -> Outcome {
        self.current()?;
        let bytes = count.checked_mul(size_of::<T>()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let to = self.inside(address, bytes)?.cast::<T>();
        if let Some(stream) = stream {
            self.check_stream(stream)?;
            if self.capture_of(stream).is_some() {
                self.note_captured(stream, 2);
                return Ok(());
            }
        }
        for index in 0..count {
            // SAFETY: `inside` made sure that `count` values from here lie in one allocation of this driver.
            unsafe { to.add(index).write_unaligned(value) };
        }
        Ok(())
    }

    fn host(address: *mut c_void) -> Outcome<*mut u8> {
        if address.is_null() {
            Err(CUDA_ERROR_INVALID_VALUE)
        } else {
            Ok(address.cast())
        }
    }

    fn accept_copy(&mut self, stream: Option<CUstream>) -> Outcome {
        self.current()?;
        match stream {
            None => self.refuse_while_capturing(),
            Some(stream) => {
                self.check_stream(stream)?;
                self.note_captured(stream, 1);
                Ok(())
            }
        }
    }
}

exports! {
    fn [cuMemcpy, cuMemcpy_ptds] (to: CUdeviceptr, from: CUdeviceptr, bytes: usize) |driver| {
        driver.copy(driver.anywhere(to, bytes), driver.anywhere(from, bytes), bytes, None)
    }
    fn [cuMemcpyAsync, cuMemcpyAsync_ptsz] (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) |driver| {
        driver.copy(driver.anywhere(to, bytes), driver.anywhere(from, bytes), bytes, Some(stream))
    }
    fn [cuMemcpyPeer, cuMemcpyPeer_ptds] (to: CUdeviceptr, _to_in: CUcontext, from: CUdeviceptr, _from_in: CUcontext, bytes: usize) |driver| {
        driver.copy(driver.inside(to, bytes), driver.inside(from, bytes), bytes, None)
    }
    fn [cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds] (to: CUdeviceptr, from: *mut c_void, bytes: usize) |driver| {
        driver.copy(driver.inside(to, bytes), Driver::host(from), bytes, None)
    }
    fn [cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz] (to: CUdeviceptr, from: *mut c_void, bytes: usize, stream: CUstream) |driver| {
        driver.copy(driver.inside(to, bytes), Driver::host(from), bytes, Some(stream))
    }
    fn [cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds] (to: *mut c_void, from: CUdeviceptr, bytes: usize) |driver| {
        driver.copy(Driver::host(to), driver.inside(from, bytes), bytes, None)
    }
    fn [cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz] (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) |driver| {
        driver.copy(Driver::host(to), driver.inside(from, bytes), bytes, Some(stream))
    }
    fn [cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds] (to: CUdeviceptr, from: CUdeviceptr, bytes: usize) |driver| {
        driver.copy(driver.inside(to, bytes), driver.inside(from, bytes), bytes, None)
    }
    fn [cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz] (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) |driver| {
        driver.copy(driver.inside(to, bytes), driver.inside(from, bytes), bytes, Some(stream))
    }
    fn [cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds] (_copy: In<c_void>) |driver| {
        driver.accept_copy(None)
    }
    fn [cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz] (_copy: In<c_void>, stream: CUstream) |driver| {
        driver.accept_copy(Some(stream))
    }
    fn [cuMemcpy3D_v2, cuMemcpy3D_v2_ptds] (_copy: In<c_void>) |driver| { driver.accept_copy(None) }
    fn [cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz] (_copy: In<c_void>, stream: CUstream) |driver| {
        driver.accept_copy(Some(stream))
    }
    fn [cuMemsetD8_v2, cuMemsetD8_v2_ptds] (to: CUdeviceptr, value: u8, count: usize) |driver| {
        driver.fill(to, value, count, None)
    }
    fn [cuMemsetD16_v2, cuMemsetD16_v2_ptds] (to: CUdeviceptr, value: u16, count: usize) |driver| {
        driver.fill(to, value, count, None)
    }
    fn [cuMemsetD32_v2, cuMemsetD32_v2_ptds] (to: CUdeviceptr, value: c_uint, count: usize) |driver| {
        driver.fill(to, value, count, None)
    }
    fn [cuMemsetD8Async, cuMemsetD8Async_ptsz] (to: CUdeviceptr, value: u8, count: usize, stream: CUstream) |driver| {
        driver.fill(to, value, count, Some(stream))
    }
    fn [cuMemsetD16Async, cuMemsetD16Async_ptsz] (to: CUdeviceptr, value: u16, count: usize, stream: CUstream) |driver| {
        driver.fill(to, value, count, Some(stream))
    }
    fn [cuMemsetD32Async, cuMemsetD32Async_ptsz] (to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) |driver| {
        driver.fill(to, value, count, Some(stream))
    }
    fn [cuStreamWriteValue32, cuStreamWriteValue32_ptsz, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz] (stream: CUstream, to: CUdeviceptr, value: c_uint, _flags: c_uint) |driver| {
        driver.fill(to, value, 1, Some(stream))
    }
    fn [cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds] (to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) |driver| {
        (0..height).try_for_each(|row| driver.fill(to + (row * pitch) as u64, value, width, None))
    }
    fn [cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz] (to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) |driver| {
        (0..height).try_for_each(|row| driver.fill(to + (row * pitch) as u64, value, width, Some(stream)))
    }
}
