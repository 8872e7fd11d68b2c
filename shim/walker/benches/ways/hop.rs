//! framehop, with every loaded module added as its documentation requires, and its allocation-free cache.

use super::DEPTH;
use culeak_walker::Registers;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder};
use std::cell::RefCell;
use std::ffi::CStr;
use std::ops::Range;

type Bytes = &'static [u8];
type Hop = (
    UnwinderX86_64<Bytes, MustNotAllocateDuringUnwind>,
    CacheX86_64<MustNotAllocateDuringUnwind>,
);

thread_local! {
    static HOP: RefCell<Option<Hop>> = const { RefCell::new(None) };
}

pub fn prepare() {
    let mut unwinder = UnwinderX86_64::new();
    // SAFETY: `add` takes a reference to the unwinder, which is passed.
    unsafe { libc::dl_iterate_phdr(Some(add), std::ptr::from_mut(&mut unwinder).cast()) };
    HOP.set(Some((unwinder, CacheX86_64::new_in())));
}

#[inline(never)]
pub fn framehop(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    HOP.with_borrow_mut(|hop| {
        let (unwinder, cache) = hop.as_mut().expect("prepared");
        let here = Registers::here();
        // SAFETY: framehop reads only above the stack pointer of this thread.
        let mut read = |address: u64| Ok(unsafe { *(address as *const u64) });
        let mut frames = unwinder.iter_frames(
            here.rip,
            UnwindRegsX86_64::new(here.rip, here.rsp, here.rbp),
            cache,
            &mut read,
        );
        let mut count = 0;
        while count < limit
            && let Ok(Some(frame)) = frames.next()
        {
            addresses[count] = frame.address();
            count += 1;
        }
        count
    })
}

/// Adds one module of the loader's list, with the sections that its program headers locate.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, unwinder: *mut libc::c_void) -> i32 {
    // SAFETY: `prepare` passes it.
    let unwinder = unsafe { &mut *unwinder.cast::<UnwinderX86_64<Bytes, MustNotAllocateDuringUnwind>>() };
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: program headers as counted, mapped while the module is.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    // SAFETY: the loader's name of the module.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned();
    let range = |header: &libc::Elf64_Phdr| header.p_vaddr..header.p_vaddr + header.p_memsz;
    let loaded: Vec<_> = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).collect();
    let Some(text) = loaded.iter().find(|header| header.p_flags & libc::PF_X != 0) else {
        return 0;
    };
    let Some(index) = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME) else {
        return 0;
    };
    let bytes = |range: &Range<u64>| {
        let start = (info.dlpi_addr + range.start) as *const u8;
        // SAFETY: within a segment that is mapped while the module is; no module is unloaded during the bench.
        unsafe { std::slice::from_raw_parts(start, (range.end - range.start) as usize) }
    };
    // The index begins with four bytes of encodings, then the distance from there to `.eh_frame`. The length of that section
    // is not recorded: it ends with its segment at the latest.
    let index = range(index);
    let away = i32::from_le_bytes(bytes(&index)[4..8].try_into().unwrap());
    let frames = (index.start + 4).wrapping_add_signed(i64::from(away));
    let Some(segment) = loaded
        .iter()
        .map(|header| range(header))
        .find(|range| range.contains(&frames))
    else {
        return 0;
    };
    let (frames, text) = (frames..segment.end, range(text));
    let whole = loaded.iter().map(|header| range(header).start).min().unwrap_or(0)
        ..loaded.iter().map(|header| range(header).end).max().unwrap_or(0);
    unwinder.add_module(Module::new(
        name,
        info.dlpi_addr + whole.start..info.dlpi_addr + whole.end,
        info.dlpi_addr,
        ExplicitModuleSectionInfo {
            base_svma: 0,
            text: Some(bytes(&text)),
            text_svma: Some(text),
            eh_frame: Some(bytes(&frames)),
            eh_frame_svma: Some(frames),
            eh_frame_hdr: Some(bytes(&index)),
            eh_frame_hdr_svma: Some(index),
            ..Default::default()
        },
    ));
    0
}
