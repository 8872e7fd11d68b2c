//! Arrays, and how many bytes one takes by its descriptor: element format × channels × extent. The driver adds padding
//! and does not report how much.

use libc::c_uint;

use super::{Word, frees_in, record_output, was_read};
use crate::recorder::AllocationEvent;
use cudarc::driver::sys::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::Space;

/// # Safety
/// As `allocates`; `descriptor` is the call's own.
pub unsafe fn creates_array<T: Word, D: Descriptor>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
) -> i32 {
    // SAFETY: the same conditions.
    unsafe { creates_handle(api, Kind::Array, out, descriptor, 1, real) }
}

/// # Safety
/// As `creates_array`.
pub unsafe fn creates_mipmap<T: Word, D: Descriptor>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
    levels: u32,
) -> i32 {
    // SAFETY: the same conditions.
    unsafe { creates_handle(api, Kind::Mipmapped, out, descriptor, levels, real) }
}

/// # Safety
/// As `creates_array`.
unsafe fn creates_handle<T: Word, D: Descriptor>(
    api: Api,
    kind: Kind,
    out: *mut T,
    descriptor: *const D,
    levels: u32,
    real: impl FnOnce() -> i32,
) -> i32 {
    let result = real();
    // SAFETY: a descriptor that the driver has read just now.
    let shape = (was_read(result) && !descriptor.is_null()).then(|| unsafe { D::shape(descriptor) });
    let bytes = shape.map_or(0, |shape: Shape| shape.bytes(levels));
    let event = AllocationEvent::new(api, kind, bytes).in_space(Space::Array);
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

pub fn destroys_array(_: Api, real: impl FnOnce() -> i32, array: impl Word) -> i32 {
    frees_in(Space::Array, array.word(), real)
}

/// CUDA_ARRAY_DESCRIPTOR in the 32-bit ABI of CUDA 2.
#[repr(C)]
pub struct ArrayDescriptorV1 {
    pub width: c_uint,
    pub height: c_uint,
    pub format: c_uint,
    pub channels: c_uint,
}

#[repr(C)]
pub struct Array3dDescriptorV1 {
    pub width: c_uint,
    pub height: c_uint,
    pub depth: c_uint,
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

/// The content of a descriptor of any version. The format is a number: newer programs pass newer formats.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub extent: [u64; 3],
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

pub trait Descriptor {
    /// # Safety
    /// `descriptor` points to a descriptor that the driver has just accepted.
    unsafe fn shape(descriptor: *const Self) -> Shape;
}

/// Reads the fields one by one, the format as an integer: the enum types of the bindings lack newer formats.
macro_rules! descriptors {
    ($( $type:ident { [$width:ident, $height:ident $(, $depth:ident)?], $format:ident, $channels:ident $(, $flags:ident)? } )*) => {
        $(
            impl Descriptor for $type {
                unsafe fn shape(descriptor: *const Self) -> Shape {
                    // SAFETY: the caller vouches for the pointer.
                    unsafe {
                        Shape {
                            extent: [
                                (*descriptor).$width as u64,
                                (*descriptor).$height as u64,
                                0 $( + (*descriptor).$depth as u64 )?,
                            ],
                            format: std::ptr::addr_of!((*descriptor).$format).cast::<u32>().read(),
                            channels: (*descriptor).$channels,
                            flags: 0 $( | (*descriptor).$flags )?,
                        }
                    }
                }
            }
        )*
    };
}

descriptors! {
    ArrayDescriptorV1 { [width, height], format, channels }
    Array3dDescriptorV1 { [width, height, depth], format, channels, flags }
    CUDA_ARRAY_DESCRIPTOR { [Width, Height], Format, NumChannels }
    CUDA_ARRAY3D_DESCRIPTOR { [Width, Height, Depth], Format, NumChannels, Flags }
}

/// Bits per element, or per block of 4 × 4 elements in block-compressed formats.
enum Element {
    Bits(u64),
    Block(u64),
}

fn element(format: u32, channels: u64) -> Element {
    match format {
        0x01 | 0x08 => Element::Bits(8 * channels),
        0x02 | 0x09 | 0x10 => Element::Bits(16 * channels),
        0x03 | 0x0a | 0x20 => Element::Bits(32 * channels),
        // NV12: a full plane of luma and a quarter of each chroma.
        0xb0 => Element::Bits(12),
        0xc0 | 0xc6 => Element::Bits(8),
        0xc1 | 0xc3 | 0xc7 | 0xc9 => Element::Bits(16),
        0xc2 | 0xc4 | 0xc8 | 0xca => Element::Bits(32),
        0xc5 | 0xcb => Element::Bits(64),
        // BC1 and BC4 take 8 bytes per block, the other block formats 16.
        0x91 | 0x92 | 0x97 | 0x98 => Element::Block(64),
        0x93..=0x96 | 0x99..=0x9e => Element::Block(128),
        // Unknown: one byte per channel, the minimum.
        _ => Element::Bits(8 * channels),
    }
}

impl Shape {
    /// Bytes of the array with `levels` mip levels.
    pub fn bytes(&self, levels: u32) -> u64 {
        if self.flags & (SPARSE | DEFERRED) != 0 {
            return 0;
        }
        let [width, height, depth] = self.extent;
        let layers = self.flags & (LAYERED | CUBEMAP) != 0;
        let longest = width.max(height).max(if layers { 0 } else { depth }).max(1);
        let levels = u64::from(levels).clamp(1, u64::from(longest.ilog2()) + 1);
        (0..levels).fold(0u64, |sum, level| {
            let at = |size: u64| (size >> level).max(1);
            let deep = if layers { depth.max(1) } else { at(depth) };
            let (width, height) = (at(width), at(height));
            let plane = match element(self.format, self.channels.into()) {
                Element::Bits(bits) => width.saturating_mul(height).saturating_mul(bits),
                Element::Block(bits) => width
                    .div_ceil(4)
                    .saturating_mul(height.div_ceil(4))
                    .saturating_mul(bits),
            };
            sum.saturating_add(plane.saturating_mul(deep).div_ceil(8))
        })
    }
}

/// Bytes by a descriptor of the runtime, which has the bits of each of four channels.
///
/// # Safety
/// `channels` points to a descriptor that the runtime has just accepted.
pub unsafe fn channel_bytes(
    channels: *const cudarc::runtime::sys::cudaChannelFormatDesc,
    [width, height, depth]: [usize; 3],
    levels: c_uint,
    flags: c_uint,
) -> u64 {
    // SAFETY: the caller vouches for the pointer; only the four integers are read.
    let bits = unsafe { (*channels).x + (*channels).y + (*channels).z + (*channels).w };
    let bytes = u32::try_from(bits / 8).unwrap_or(0);
    let extent = [width as u64, height as u64, depth as u64];
    Shape {
        extent,
        format: 0x01,
        channels: bytes,
        flags,
    }
    .bytes(levels)
}
