//! One read of a socket, such that nobody holds a buffer while nothing comes.
//!
//! Bytes are read into a buffer of the thread's and copied into one of exactly their size. Where it is known that many
//! are to come, they are read straight to where they stay.
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

/// Most that comes in one read of bytes that nobody announced: they are copied, so no more than most requests have.
pub const READ: usize = 16 * 1024;
/// From so many announced bytes on, copying costs more than a buffer of their own.
const STRAIGHT: u64 = 16 * 1024;
/// Most that is read of announced bytes at once: about what a socket holds when it is looked at.
pub const MOST: u64 = 64 * 1024;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The next bytes; none at the end. So many as `more` are known to follow; where that is a lot, only they are read.
///
/// # Errors
/// The socket's.
pub fn poll_read(mut stream: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>, more: u64) -> Poll<io::Result<Bytes>> {
    if more >= STRAIGHT {
        let mut read = BytesMut::with_capacity(usize::try_from(more.min(MOST)).unwrap_or(READ));
        return poll_read_buf(stream, cx, &mut read).map_ok(|_| fitted(read));
    }
    let mut scratch = SCRATCH.take();
    if scratch.is_empty() {
        scratch = vec![0; READ];
    }
    let mut read = ReadBuf::new(&mut scratch);
    let polled = stream.as_mut().poll_read(cx, &mut read);
    let polled = polled.map_ok(|()| Bytes::copy_from_slice(read.filled()));
    SCRATCH.set(scratch);
    polled
}

/// What came, without much room behind it: it may be held for long.
fn fitted(read: BytesMut) -> Bytes {
    if read.len() < read.capacity() / 2 { Bytes::copy_from_slice(&read) } else { read.freeze() }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    async fn all(written: usize, announced: bool) -> (Vec<u8>, Vec<usize>) {
        let (mut far, mut near) = duplex(1 << 20);
        let bytes: Vec<u8> = (0..written).map(|at| (at * 7 % 251) as u8).collect();
        far.write_all(&bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let (mut seen, mut reads) = (Vec::new(), Vec::new());
        loop {
            let more = if announced { (written - seen.len()) as u64 } else { 0 };
            let read = poll_fn(|cx| poll_read(Pin::new(&mut near), cx, more)).await.unwrap();
            if read.is_empty() {
                assert!(seen == bytes, "{written} bytes");
                return (seen, reads);
            }
            reads.push(read.len());
            seen.extend(read);
        }
    }

    #[tokio::test]
    async fn bytes_come_whole_and_in_order() {
        for written in [0, 1, 1_000, READ, READ + 1, 600_000] {
            assert_eq!(all(written, false).await.1.iter().max().copied().unwrap_or(0), written.min(READ));
            let most = if written as u64 >= STRAIGHT { MOST as usize } else { READ };
            assert_eq!(all(written, true).await.1.iter().max().copied().unwrap_or(0), written.min(most));
        }
    }

    #[tokio::test]
    async fn no_more_is_read_than_is_announced() {
        let (mut far, mut near) = duplex(1 << 20);
        far.write_all(&[1; 20_003]).await.unwrap();
        let mut read = async |more| poll_fn(|cx| poll_read(Pin::new(&mut near), cx, more)).await.unwrap().len();
        assert_eq!((read(20_000).await, read(0).await), (20_000, 3));
    }

    #[tokio::test]
    async fn what_is_held_is_of_the_size_of_what_came() {
        let (mut far, mut near) = duplex(1 << 20);
        for (sent, more) in [(10, 0), (10, 200_000), (50_000, 200_000)] {
            far.write_all(&vec![1; sent]).await.unwrap();
            let read = poll_fn(|cx| poll_read(Pin::new(&mut near), cx, more)).await.unwrap();
            assert_eq!(read.len(), sent);
            assert!(BytesMut::from(read).capacity() <= 2 * sent + 64, "{sent} of {more}");
        }
        // Nothing there: nothing is read, and nothing breaks for the next.
        assert!(poll_read(Pin::new(&mut near), &mut Context::from_waker(Waker::noop()), 0).is_pending());
        far.write_all(b"x").await.unwrap();
        assert_eq!(poll_fn(|cx| poll_read(Pin::new(&mut near), cx, 0)).await.unwrap(), "x");
    }
}
