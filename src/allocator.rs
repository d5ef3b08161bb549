//! The process's allocator: mimalloc, called without an alignment where each of its blocks has it.
//!
//! The crate's own allocator asks for an alignment always. mimalloc then takes a longer way, and over 1 KiB a larger block
//! within which it looks for an aligned place; docs/performance.md has what that costs a request.
#![expect(unsafe_code, reason = "an allocator can't be written without")]

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_collect, mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc.
pub struct Allocator;

/// Whether each block has the layout's alignment: all have that of a word (mimalloc.h: at least 8 bytes, 16 from 16 on).
const fn is_natural(layout: Layout) -> bool {
    layout.align() <= size_of::<usize>()
}

// SAFETY: mimalloc's functions return null or a block of at least the size that was asked for, with the alignment of a word
// or the one that was asked for, apart from all others until it is freed; they don't unwind, and any thread may call them.
// Its blocks know what they are, so `mi_free` and the two ways to grow take one of either kind.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: an alignment of a layout is a power of two.
        unsafe { if is_natural(layout) { mi_malloc(size) } else { mi_malloc_aligned(size, align) } }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as above.
        unsafe { if is_natural(layout) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) } }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's: the block is one of ours, and freed once.
        unsafe { mi_free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (block, align) = (block.cast(), layout.align());
        // SAFETY: the caller's: the block is one of ours, and no longer used when another comes in its place.
        unsafe { if is_natural(layout) { mi_realloc(block, size) } else { mi_realloc_aligned(block, size, align) } }
            .cast()
    }
}

/// Gives memory that is free back to the system. mimalloc does so by itself only where much is freed again later, and
/// reading a tokenizer takes five times what it leaves.
pub fn give_back() {
    // SAFETY: it takes no pointer, and may be called at any time by any thread (mimalloc.h, 3.3).
    unsafe { mi_collect(true) }
}
