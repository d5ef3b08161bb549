//! A file's texts: itself, or the JSON files of a tar archive, compressed or not.
use std::io::Read as _;

/// No trace is larger than this, unpacked.
const MOST_BYTES: u64 = 4 << 30;
/// A tar header and the grain of its members.
const GRAIN: usize = 512;

/// Each text with its member's name, where there are members, in the order of their names.
pub(super) fn texts(mut bytes: Vec<u8>) -> Result<Vec<(Option<String>, String)>, String> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(bytes.as_slice())
            .take(MOST_BYTES + 1)
            .read_to_end(&mut unpacked)
            .map_err(|error| format!("is no sound gzip file: {error}"))?;
        if unpacked.len() as u64 > MOST_BYTES {
            return Err(format!("is larger than {} GiB when unpacked", MOST_BYTES >> 30));
        }
        bytes = unpacked;
    }
    if bytes.get(257..262) != Some(b"ustar") {
        let text = String::from_utf8(bytes).map_err(|error| format!("is not UTF-8 text: {error}"))?;
        return Ok(vec![(None, text)]);
    }
    let mut members = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + GRAIN).filter(|header| header[0] != 0) {
        let field = |range: std::ops::Range<usize>| {
            let bytes = &header[range];
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
        };
        let name = field(0..100);
        let size = usize::from_str_radix(&field(124..136), 8)
            .map_err(|_| format!("the archive's header at byte {at} has no size"))?;
        let start = at + GRAIN;
        let body = start.checked_add(size).and_then(|end| bytes.get(start..end));
        let body = body.ok_or_else(|| format!("the archive ends within {name}"))?;
        // Plain files only ('0', or NUL of old); macOS adds ._ files of its own.
        let file = name.rsplit('/').next().unwrap_or_default();
        let wanted = (file.ends_with(".json") || file.ends_with(".jsonl")) && !file.starts_with("._");
        if matches!(header[156], b'0' | 0) && wanted {
            let text = std::str::from_utf8(body).map_err(|error| format!("{name} is not UTF-8 text: {error}"))?;
            members.push((Some(name), text.to_owned()));
        }
        at = start + size.next_multiple_of(GRAIN);
    }
    members.sort();
    Ok(members)
}
