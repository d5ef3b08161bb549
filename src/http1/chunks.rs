//! The chunked coding, strictly: sizes in plain hex, CRLF everywhere, extensions and trailers bounded.
use std::ops::Range;

use super::head::{is_control, is_token};
use super::{Kind, Violation};

/// Digits of a size. Sizes of 2⁶³ and above are refused too: nobody sends them in earnest.
const DIGITS: u8 = 16;
/// Bytes of chunk extensions in one body.
const EXTENSIONS: usize = 4 * 1024;
/// Bytes of a trailer section.
const TRAILERS: usize = 8 * 1024;

/// A chunked body of which some bytes have been read.
#[derive(Debug, Default)]
pub struct Chunks {
    at: At,
    extensions: usize,
    trailers: usize,
    fields: usize,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
}

impl Default for At {
    fn default() -> Self {
        Self::Size { digits: 0, size: 0 }
    }
}

impl Chunks {
    /// Reads on: how many bytes belong to it, and whether it ends with them. Each stretch of data is handed to `data`.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        fields: usize,
        mut data: impl FnMut(Range<usize>),
    ) -> Result<(usize, bool), Violation> {
        let mut read = 0;
        while read < bytes.len() {
            if let At::Data { left } = self.at {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - read);
                data(read..read + here);
                read += here;
                let left = left - here as u64;
                self.at = if left == 0 { At::DataCr } else { At::Data { left } };
                continue;
            }
            let ends = self.at == At::LastLf;
            self.at = self.step(bytes[read], fields)?;
            read += 1;
            if ends {
                return Ok((read, true));
            }
        }
        Ok((read, false))
    }

    fn step(&mut self, byte: u8, fields: usize) -> Result<At, Violation> {
        let chunk = |reason| Err(Violation::body(Kind::Chunk, reason));
        if matches!(self.at, At::Trailer | At::TrailerName | At::TrailerValue | At::TrailerLf) {
            self.trailers += 1;
            if self.trailers > TRAILERS {
                return Err(Violation::body(Kind::HeadTooLarge, "the trailer section is larger than 8 KiB"));
            }
        }
        Ok(match (self.at, byte) {
            (At::Size { digits, size }, _) if byte.is_ascii_hexdigit() => {
                if digits == DIGITS || size > (i64::MAX as u64) >> 4 {
                    return chunk("a chunk size is too large");
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                At::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (At::Size { digits: 1.., size }, b'\r') => At::SizeEnd { size },
            (At::Size { digits: 1.., size }, b';') => At::Extension { size },
            (At::Size { .. }, _) => return chunk("a chunk size must be plain hexadecimal digits, and end with CRLF"),
            (At::Extension { size }, b'\r') => At::SizeEnd { size },
            (At::Extension { .. }, _) if is_control(byte) => {
                return chunk("a chunk extension has a control character, or ends without CRLF");
            }
            (At::Extension { size }, _) => {
                self.extensions += 1;
                if self.extensions > EXTENSIONS {
                    return chunk("chunk extensions come to more than 4 KiB");
                }
                At::Extension { size }
            }
            (At::SizeEnd { size: 0 }, b'\n') => At::Trailer,
            (At::SizeEnd { size }, b'\n') => At::Data { left: size },
            (At::SizeEnd { .. }, _) => return chunk("a chunk size must end with CRLF"),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::default(),
            (At::DataCr | At::DataLf, _) => return chunk("a chunk's data must end with CRLF"),
            (At::Trailer, b'\r') => At::LastLf,
            (At::Trailer, _) if is_token(byte) => {
                self.fields += 1;
                if self.fields > fields {
                    return Err(Violation::body(
                        Kind::HeadTooLarge,
                        "there are more trailer fields than are taken (of a request: limits.headers)",
                    ));
                }
                At::TrailerName
            }
            (At::TrailerName, b':') => At::TrailerValue,
            (At::TrailerName, _) if is_token(byte) => At::TrailerName,
            (At::TrailerValue, b'\r') => At::TrailerLf,
            (At::TrailerValue, _) if !is_control(byte) => At::TrailerValue,
            (At::TrailerLf, b'\n') => At::Trailer,
            (At::LastLf, b'\n') => At::default(),
            _ => return Err(Violation::body(Kind::Trailer, "the trailer section is not made of header lines")),
        })
    }
}
