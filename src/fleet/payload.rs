//! A request's body, in the pieces that it came in: it is joined only where somebody must read it.
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// A piece of at least so many bytes is kept as it is; smaller ones are gathered, since each costs a place in a list.
const PIECE: usize = 16 * 1024;

/// Bytes in pieces. Cheap to clone, so that an attempt on another replica sends the same.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    pieces: VecDeque<Bytes>,
    length: usize,
}

/// A payload that is being read.
#[derive(Debug, Default)]
pub struct Gathering {
    payload: Payload,
    /// What comes after its pieces.
    small: BytesMut,
}

impl Gathering {
    /// Bytes so far.
    pub fn length(&self) -> usize {
        self.payload.length + self.small.len()
    }

    /// The next bytes.
    pub fn push(&mut self, piece: Bytes) {
        if self.length() == 0 || piece.len() >= PIECE {
            self.settle();
            self.payload.push(piece);
        } else {
            self.small.extend_from_slice(&piece);
        }
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.payload.push(self.small.split().freeze());
        }
    }

    /// All of it.
    pub fn finish(mut self) -> Payload {
        self.settle();
        self.payload
    }
}

impl Payload {
    fn push(&mut self, piece: Bytes) {
        // HTTP/2 has empty frames; an empty piece in front would hide those behind it.
        if !piece.is_empty() {
            self.length += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All in one piece.
    pub fn into_whole(mut self) -> Bytes {
        self.copy_to_bytes(self.length)
    }
}

impl From<Bytes> for Payload {
    fn from(whole: Bytes) -> Self {
        let mut payload = Self::default();
        payload.push(whole);
        payload
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.pieces);
        filled.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.length, "no more than remains");
        self.length -= count;
        while count > 0
            && let Some(first) = self.pieces.front_mut()
        {
            let here = count.min(first.len());
            first.advance(here);
            count -= here;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        // One piece is never copied; of several, one buffer is made of the right size.
        if self.pieces.len() == 1
            && count == self.length
            && let Some(only) = self.pieces.pop_front()
        {
            self.length = 0;
            return only;
        }
        let mut whole = BytesMut::with_capacity(count);
        while whole.len() < count {
            let chunk = self.chunk();
            let here = chunk.len().min(count - whole.len());
            whole.extend_from_slice(&chunk[..here]);
            self.advance(here);
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_piece_without_bytes_is_none() {
        let mut gathering = Gathering::default();
        for piece in ["", "a", "", "b"] {
            gathering.push(piece.into());
        }
        let mut payload = gathering.finish();
        assert_eq!((payload.chunk(), payload.len()), (&b"a"[..], 2));
        payload.advance(1);
        assert_eq!(payload.chunk(), b"b");
        assert_eq!(Payload::from(Bytes::new()).pieces.len(), 0);
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_in_order(
            lengths in prop::collection::vec(prop_oneof![0..40usize, PIECE - 2..PIECE + 2], 0..8),
            steps in prop::collection::vec(1..PIECE * 2, 1..20),
        ) {
            let mut gathering = Gathering::default();
            let mut all = Vec::new();
            for (at, length) in lengths.into_iter().enumerate() {
                let piece: Vec<u8> = (0..length).map(|byte| (at * 7 + byte) as u8).collect();
                gathering.push(piece.clone().into());
                all.extend(piece);
                prop_assert_eq!(gathering.length(), all.len());
            }
            let payload = gathering.finish();
            prop_assert_eq!(payload.len(), all.len());
            prop_assert_eq!(&payload.clone().into_whole()[..], &all[..]);
            // As a socket takes it, a few bytes at a time.
            let (mut rest, mut seen) = (payload, Vec::new());
            for step in steps.into_iter().cycle() {
                let mut slices = [IoSlice::new(&[]); 3];
                let filled = rest.chunks_vectored(&mut slices);
                prop_assert_eq!(filled == 0, !rest.has_remaining());
                let offered: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                if offered.is_empty() {
                    break;
                }
                let taken = step.min(offered.len());
                seen.extend_from_slice(&offered[..taken]);
                rest.advance(taken);
                prop_assert_eq!(rest.remaining(), all.len() - seen.len());
            }
            prop_assert_eq!(seen, all);
        }
    }
}
