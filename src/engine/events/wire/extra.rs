//! vLLM's extra keys: what besides tokens went into a block's hash, block by block.
//!
//! For each block null, or a list in this order: the adapter's name; media as `(identifier, offset)` (from 0.20.0; a bare
//! identifier in 0.17 and 0.18); the cache salt, bare, in a prompt's first block only; the digest of its embeddings as
//! bytes. Events have them untagged; the tagged forms that hashes use from 0.33.0, `("cache_salt", s)`,
//! `("lora", name, path)`, `("mm", identifier, offset)` and `("prompt_embeds", digest)`, are read as well.
//!
//! An identifier of 0.17 or 0.18 looks like a salt unless it is a digest in hexadecimal. If one is taken for the other,
//! the block is not found again: credit is lost, none is invented.
use xxhash_rust::xxh3::Xxh3;

use super::Reason;
use super::fields::Fields;
use super::reader::{Reader, Value};

/// What the extra keys of an event say.
#[derive(Debug, Default)]
pub(super) struct Keys<'a> {
    pub salt: Option<&'a str>,
    /// One a block, or none at all.
    pub extras: Vec<Option<u64>>,
}

/// Reads them.
pub(super) fn read<'a>(fields: &Fields<'a>) -> Result<Keys<'a>, Reason> {
    let mut keys = Keys::default();
    let Some(mut reader) = fields.extra_keys else { return Ok(keys) };
    let blocks = match reader.value()? {
        Value::Nil | Value::Array(0) => return Ok(keys),
        Value::Array(blocks) if blocks == fields.hashes.len() => blocks,
        _ => return Err(Reason::ExtraKeys),
    };
    for at in 0..blocks {
        let first = at == 0 && fields.parent.is_none();
        let extra = Block::read(&mut reader, fields)?;
        let (salt, extra) = extra.finish(first, fields.array && fields.group.is_none());
        keys.salt = keys.salt.or(salt);
        keys.extras.push(extra);
    }
    if keys.extras.iter().all(Option::is_none) {
        keys.extras = Vec::new();
    }
    Ok(keys)
}

/// One block's.
#[derive(Default)]
struct Block<'a> {
    salt: Option<&'a str>,
    /// The last bare text: a salt, or a medium.
    bare: Option<&'a str>,
    /// Of what is neither adapter nor salt, once there is any.
    hash: Option<Xxh3>,
}

impl<'a> Block<'a> {
    fn read(reader: &mut Reader<'a>, fields: &Fields<'a>) -> Result<Self, Reason> {
        let mut block = Self::default();
        let length = match reader.value()? {
            Value::Nil => return Ok(block),
            Value::Array(length) => length,
            _ => return Err(Reason::ExtraKeys),
        };
        for at in 0..length {
            match reader.value()? {
                Value::Nil => {}
                Value::Text(text) if at == 0 && fields.adapter_name == Some(text) => {}
                Value::Text(text) => {
                    if let Some(medium) = block.bare.replace(text) {
                        block.add(medium.as_bytes(), 0);
                    }
                }
                // An adapter's number.
                Value::Unsigned(_) if at == 0 && fields.adapter_id.is_some() => {}
                Value::Bytes(digest) => block.add(digest, 0),
                Value::Array(parts) => block.read_key(parts, reader)?,
                _ => return Err(Reason::ExtraKeys),
            }
        }
        Ok(block)
    }

    /// A key of several parts.
    fn read_key(&mut self, parts: usize, reader: &mut Reader<'a>) -> Result<(), Reason> {
        if !(2..=3).contains(&parts) {
            return Err(Reason::ExtraKeys);
        }
        let (first, second) = (reader.value()?, reader.value()?);
        let third = if parts == 3 { reader.value()? } else { Value::Nil };
        match (first, second) {
            (Value::Text("cache_salt"), Value::Text(salt)) if third == Value::Nil => self.salt = Some(salt),
            (Value::Text("lora"), Value::Text(_)) if matches!(third, Value::Nil | Value::Text(_)) => {}
            (Value::Text("mm"), Value::Text(medium)) => self.add(medium.as_bytes(), offset(third)?),
            (Value::Text("prompt_embeds"), Value::Bytes(digest)) if third == Value::Nil => self.add(digest, 0),
            (Value::Text(medium), at) if third == Value::Nil => self.add(medium.as_bytes(), offset(at)?),
            _ => return Err(Reason::ExtraKeys),
        }
        Ok(())
    }

    /// Adds a medium or a digest, and where it stands in the block (before it, if negative).
    fn add(&mut self, id: &[u8], offset: i64) {
        let hash = self.hash.get_or_insert_with(Xxh3::new);
        hash.update(&(id.len() as u64).to_le_bytes());
        hash.update(id);
        hash.update(&offset.to_le_bytes());
    }

    /// The salt, and the hash of the rest. `bare_media`: a version that writes media without their offset.
    fn finish(mut self, first: bool, bare_media: bool) -> (Option<&'a str>, Option<u64>) {
        if let Some(bare) = self.bare {
            if first && self.salt.is_none() && !(bare_media && is_digest(bare)) {
                self.salt = Some(bare);
            } else {
                self.add(bare.as_bytes(), 0);
            }
        }
        (self.salt, self.hash.map(|hash| hash.digest()))
    }
}

fn offset(value: Value<'_>) -> Result<i64, Reason> {
    match value {
        Value::Unsigned(offset) => i64::try_from(offset).map_err(|_| Reason::ExtraKeys),
        Value::Negative(offset) => Ok(offset),
        _ => Err(Reason::ExtraKeys),
    }
}

/// A content hash, as vLLM's hashers write it: 256 bits in hexadecimal.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
