//! Arrays and mipmapped arrays: handles with bytes.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::ffi::c_uint;

pub struct ArrayObject {
    pub bytes: u64,
    pub device: usize,
    pub context: Handle,
    pub shape: ArrayShape,
    pub mipmap: bool,
    /// The mipmapped or planar array that this is a view of.
    pub part_of: Option<(Handle, c_uint)>,
}

/// CUDA_ARRAY3D_DESCRIPTOR with its enum as a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayShape {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

/// The 2D descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayShape2d {
    pub width: usize,
    pub height: usize,
    pub format: c_uint,
    pub channels: c_uint,
}

/// Both with the 32-bit sizes of CUDA 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDescriptorV1 {
    width: c_uint,
    height: c_uint,
    format: c_uint,
    channels: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dDescriptorV1 {
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

const _: () = assert!(size_of::<ArrayShape>() == size_of::<CUDA_ARRAY3D_DESCRIPTOR>());
const _: () = assert!(size_of::<ArrayShape2d>() == size_of::<CUDA_ARRAY_DESCRIPTOR>());

/// Any of the four descriptors.
pub trait Shape {
    fn read(self) -> Outcome<ArrayShape>;
}

impl Shape for In<CUDA_ARRAY3D_DESCRIPTOR> {
    fn read(self) -> Outcome<ArrayShape> {
        self.cast::<ArrayShape>().get()
    }
}

impl Shape for In<CUDA_ARRAY_DESCRIPTOR> {
    fn read(self) -> Outcome<ArrayShape> {
        let flat = self.cast::<ArrayShape2d>().get()?;
        Ok(ArrayShape::flat(flat.width, flat.height, flat.format, flat.channels))
    }
}

impl Shape for In<ArrayDescriptorV1> {
    fn read(self) -> Outcome<ArrayShape> {
        let flat = self.get()?;
        let (width, height) = (flat.width as usize, flat.height as usize);
        Ok(ArrayShape::flat(width, height, flat.format, flat.channels))
    }
}

impl Shape for In<Array3dDescriptorV1> {
    fn read(self) -> Outcome<ArrayShape> {
        let solid = self.get()?;
        Ok(ArrayShape {
            width: solid.width as usize,
            height: solid.height as usize,
            depth: solid.depth as usize,
            format: solid.format,
            channels: solid.channels,
            flags: solid.flags,
        })
    }
}

impl ArrayShape {
    fn flat(width: usize, height: usize, format: c_uint, channels: c_uint) -> ArrayShape {
        ArrayShape {
            width,
            height,
            depth: 0,
            format,
            channels,
            flags: 0,
        }
    }

    fn bytes(&self, levels: c_uint) -> Option<u64> {
        let channel = match self.format {
            1 | 8 => 1,
            2 | 9 | 0x10 => 2,
            3 | 10 | 0x20 => 4,
            _ => 4,
        };
        let mut total = 0u64;
        let size = |extent: usize, level: c_uint| (extent as u64).checked_shr(level).unwrap_or(0).max(1);
        for level in 0..levels {
            let texels = size(self.width, level)
                .checked_mul(size(self.height, level))?
                .checked_mul(size(self.depth, level))?;
            total = total.checked_add(texels.checked_mul(channel * self.channels as u64)?)?;
        }
        Some(total)
    }

    fn check(&self) -> Outcome {
        let valid = self.width > 0 && matches!(self.channels, 1 | 2 | 4);
        if valid { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

const DEFERRED_OR_SPARSE: c_uint = 0x40 | 0x80;

impl Driver {
    pub fn create_array(&mut self, out: Out<Handle>, shape: impl Shape, levels: Option<c_uint>) -> Outcome {
        let shape = shape.read()?;
        shape.check()?;
        let bytes = match shape.flags & DEFERRED_OR_SPARSE {
            0 => shape.bytes(levels.unwrap_or(1)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?,
            _ => 0,
        };
        self.refuse_while_capturing()?;
        self.enter_array(out, shape, bytes, levels.is_some())
    }

    pub fn enter_array(&mut self, out: Out<Handle>, shape: ArrayShape, bytes: u64, mipmap: bool) -> Outcome {
        out.check()?;
        let context = self.current()?;
        let device = self.contexts[&context].device;
        self.charge(device, bytes)?;
        let handle = self.new_handle();
        if bytes > 0 {
            self.in_kernel(|kernel| kernel.take(device, handle, bytes))?;
        }
        self.arrays.insert(
            handle,
            ArrayObject {
                bytes,
                device,
                context,
                shape,
                mipmap,
                part_of: None,
            },
        );
        out.put(handle)
    }

    pub fn destroy_array(&mut self, handle: Handle, mipmap: bool) -> Outcome {
        match self.arrays.get(&handle) {
            Some(array) if array.mipmap == mipmap && array.part_of.is_none() => {}
            _ => return Err(CUDA_ERROR_INVALID_HANDLE),
        }
        self.refuse_while_capturing()?;
        self.drop_array(handle);
        Ok(())
    }

    fn drop_array(&mut self, handle: Handle) {
        let parts: Vec<Handle> = self
            .arrays
            .iter()
            .filter(|(_, array)| array.part_of.is_some_and(|(whole, _)| whole == handle))
            .map(|(part, _)| *part)
            .collect();
        for gone in parts.into_iter().chain([handle]) {
            if let Some(array) = self.arrays.remove(&gone) {
                self.uncharge(array.device, array.bytes);
                if let Some(kernel) = &mut self.kernel {
                    kernel.give_back(gone);
                }
                self.drop_handle(gone);
            }
        }
    }

    pub fn forget_arrays_of(&mut self, context: Handle) {
        let owned: Vec<Handle> = self
            .arrays
            .iter()
            .filter(|(_, array)| array.context == context)
            .map(|(handle, _)| *handle)
            .collect();
        owned.into_iter().for_each(|handle| self.drop_array(handle));
    }

    /// A view of a level or plane; repeated requests return the same one.
    fn part(&mut self, whole: Handle, index: c_uint, mipmap: bool) -> Outcome<Handle> {
        let array = self
            .arrays
            .get(&whole)
            .filter(|array| array.mipmap == mipmap)
            .ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (device, context, mut shape) = (array.device, array.context, array.shape);
        let known = self
            .arrays
            .iter()
            .find(|(_, array)| array.part_of == Some((whole, index)))
            .map(|(part, _)| *part);
        if let Some(part) = known {
            return Ok(part);
        }
        if mipmap {
            shape.width = (shape.width >> index).max(1);
            shape.height >>= index;
        }
        let handle = self.new_handle();
        let part = ArrayObject {
            bytes: 0,
            device,
            context,
            shape,
            mipmap: false,
            part_of: Some((whole, index)),
        };
        self.arrays.insert(handle, part);
        Ok(handle)
    }

    fn shape(&self, array: CUarray) -> Outcome<ArrayShape> {
        Ok(self
            .arrays
            .get(&(array as Handle))
            .ok_or(CUDA_ERROR_INVALID_HANDLE)?
            .shape)
    }
}

exports! {
    fn cuMipmappedArrayGetLevel(out: Out<CUarray>, whole: CUmipmappedArray, level: c_uint) |driver| {
        out.put(driver.part(whole as Handle, level, true)? as CUarray)
    }
    fn cuArrayGetPlane(out: Out<CUarray>, whole: CUarray, plane: c_uint) |driver| {
        out.put(driver.part(whole as Handle, plane, false)? as CUarray)
    }
    fn cuArray3DGetDescriptor_v2(out: Out<ArrayShape>, array: CUarray) |driver| { out.put(driver.shape(array)?) }
    fn cuArrayGetDescriptor_v2(out: Out<ArrayShape2d>, array: CUarray) |driver| {
        let ArrayShape { width, height, format, channels, .. } = driver.shape(array)?;
        out.put(ArrayShape2d { width, height, format, channels })
    }
}
