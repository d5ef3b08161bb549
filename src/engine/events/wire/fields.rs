//! An event's fields, by place or by name.
use super::reader::{Read, Reader, Unreadable, Value};
use super::{Adapter, Kind, Reason, Tier};

/// Fields that matter.
#[derive(Debug, Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    AdapterId,
    AdapterName,
    Medium,
    ExtraKeys,
    Group,
    Kind,
    Salt,
    Locality,
}

/// After the event's name, as vLLM 0.9.0 to 0.23.0 and SGLang 0.4.9 to 0.5.18 order them; each version stops somewhere.
const STORED: &[Field] = &[
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::AdapterId,
    Field::Medium,
    Field::AdapterName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
];
const REMOVED: &[Field] = &[Field::Hashes, Field::Medium, Field::Group];

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Tag {
    fn of(name: &str) -> Self {
        match name {
            "BlockStored" => Self::Stored,
            "BlockRemoved" => Self::Removed,
            "AllBlocksCleared" => Self::Cleared,
            _ => Self::Unknown,
        }
    }
}

/// An event as it was written.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub tag: Option<Tag>,
    pub hashes: Vec<u64>,
    pub parent: Option<u64>,
    pub tokens: Vec<u32>,
    pub block_size: u32,
    pub adapter_id: Option<Adapter>,
    pub adapter_name: Option<&'a str>,
    pub medium: Option<&'a str>,
    /// Where they begin: what they mean depends on the other fields.
    pub extra_keys: Option<Reader<'a>>,
    pub group: Option<u32>,
    pub kind: Option<Kind>,
    pub salt: Option<&'a str>,
    remote: bool,
    /// By place, not by name.
    pub array: bool,
    /// The first field that is of no use.
    pub fault: Option<Reason>,
}

impl<'a> Fields<'a> {
    /// Reads one event, to its end.
    pub fn read(reader: &mut Reader<'a>) -> Read<Self> {
        let mut fields = Self::default();
        match reader.value()? {
            Value::Array(length) => fields.read_array(length, reader)?,
            Value::Map(pairs) => fields.read_map(pairs, reader)?,
            _ => {}
        }
        Ok(fields)
    }

    /// Where the blocks are.
    pub fn tier(&self) -> Tier {
        match self.medium {
            _ if self.remote => Tier::Disk,
            None => Tier::Device,
            Some(medium) if medium.eq_ignore_ascii_case("gpu") => Tier::Device,
            Some(medium) if medium.to_ascii_uppercase().starts_with("CPU") => Tier::Cpu,
            Some(_) => Tier::Disk,
        }
    }

    fn read_array(&mut self, length: usize, reader: &mut Reader<'a>) -> Read<()> {
        self.array = true;
        let Some(rest) = length.checked_sub(1) else { return Ok(()) };
        let head = reader.value()?;
        if let Value::Text(name) = head {
            self.tag = Some(Tag::of(name));
        }
        reader.leave(head)?;
        let names = match self.tag {
            Some(Tag::Stored) => STORED,
            Some(Tag::Removed) => REMOVED,
            _ => &[],
        };
        for at in 0..rest {
            match names.get(at) {
                Some(&name) => self.field(name, reader)?,
                None => reader.skip()?,
            }
        }
        Ok(())
    }

    fn read_map(&mut self, pairs: usize, reader: &mut Reader<'a>) -> Read<()> {
        for _ in 0..pairs {
            let key = reader.value()?;
            reader.leave(key)?;
            let name = match key {
                Value::Text("type") => {
                    let value = reader.value()?;
                    if let Value::Text(name) = value {
                        self.tag = Some(Tag::of(name));
                    }
                    reader.leave(value)?;
                    continue;
                }
                Value::Text("block_hashes") => Field::Hashes,
                Value::Text("parent_block_hash") => Field::Parent,
                Value::Text("token_ids") => Field::Tokens,
                Value::Text("block_size") => Field::BlockSize,
                Value::Text("lora_id") => Field::AdapterId,
                Value::Text("lora_name") => Field::AdapterName,
                Value::Text("medium") => Field::Medium,
                Value::Text("extra_keys") => Field::ExtraKeys,
                Value::Text("group_idx") => Field::Group,
                Value::Text("kv_cache_spec_kind") => Field::Kind,
                Value::Text("cache_salt") => Field::Salt,
                Value::Text("locality") => Field::Locality,
                _ => {
                    reader.skip()?;
                    continue;
                }
            };
            self.field(name, reader)?;
        }
        Ok(())
    }

    /// Reads a field; where it is of no use, notes that and steps over it.
    fn field(&mut self, name: Field, reader: &mut Reader<'a>) -> Read<()> {
        let start = *reader;
        match self.set(name, reader) {
            Ok(()) => Ok(()),
            Err(fault) => {
                self.fault.get_or_insert(fault);
                *reader = start;
                reader.skip()
            }
        }
    }

    fn set(&mut self, name: Field, reader: &mut Reader<'a>) -> Result<(), Reason> {
        match name {
            Field::Hashes => self.hashes = list(reader, Reason::Hashes, hash)?,
            Field::Parent => {
                self.parent = match value(reader)? {
                    Value::Nil => None,
                    value => Some(hash(value)?),
                }
            }
            Field::Tokens => self.tokens = list(reader, Reason::Tokens, token)?,
            Field::BlockSize => self.block_size = number(value(reader)?)?.ok_or(Reason::BlockSize)?,
            Field::AdapterId => {
                self.adapter_id = match value(reader)? {
                    Value::Nil => None,
                    Value::Unsigned(id) => Some(Adapter::Id(i64::try_from(id).map_err(|_| Reason::Field)?)),
                    Value::Negative(id) => Some(Adapter::Id(id)),
                    Value::Text(name) => Some(Adapter::Name(name.to_owned())),
                    _ => return Err(Reason::Field),
                }
            }
            Field::AdapterName => self.adapter_name = text(value(reader)?)?,
            Field::Medium => self.medium = text(value(reader)?)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip()?;
            }
            Field::Group => self.group = number(value(reader)?)?,
            Field::Kind => {
                self.kind = text(value(reader)?)?.map(|kind| match kind {
                    "full_attention" => Kind::Full,
                    "mla_attention" => Kind::Mla,
                    "sink_full_attention" => Kind::SinkFull,
                    _ => Kind::Other,
                })
            }
            Field::Salt => self.salt = text(value(reader)?)?,
            Field::Locality => self.remote = text(value(reader)?)? == Some("REMOTE"),
        }
        Ok(())
    }
}

impl From<Unreadable> for Reason {
    fn from(_: Unreadable) -> Self {
        Self::Field
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, Reason> {
    Ok(reader.value()?)
}

fn list<'a, T>(
    reader: &mut Reader<'a>,
    wrong: Reason,
    read: impl Fn(Value<'a>) -> Result<T, Reason>,
) -> Result<Vec<T>, Reason> {
    let Value::Array(length) = value(reader)? else { return Err(wrong) };
    let mut list = Vec::with_capacity(reader.room(length));
    for _ in 0..length {
        list.push(read(value(reader)?)?);
    }
    Ok(list)
}

fn hash(value: Value<'_>) -> Result<u64, Reason> {
    match value {
        Value::Unsigned(hash) => Ok(hash),
        // The same 64 bits, as SGLang writes them.
        Value::Negative(hash) => Ok(hash.cast_unsigned()),
        // As vLLM itself shortens a digest to an integer.
        Value::Bytes(digest) => digest.last_chunk().map(|last| u64::from_be_bytes(*last)).ok_or(Reason::Hashes),
        _ => Err(Reason::Hashes),
    }
}

fn token(value: Value<'_>) -> Result<u32, Reason> {
    match value {
        Value::Unsigned(token) => u32::try_from(token).map_err(|_| Reason::Tokens),
        Value::Array(2) => Err(Reason::TokenPairs),
        _ => Err(Reason::Tokens),
    }
}

fn number(value: Value<'_>) -> Result<Option<u32>, Reason> {
    match value {
        Value::Nil => Ok(None),
        Value::Unsigned(number) => u32::try_from(number).map(Some).map_err(|_| Reason::Field),
        _ => Err(Reason::Field),
    }
}

fn text(value: Value<'_>) -> Result<Option<&str>, Reason> {
    match value {
        Value::Nil => Ok(None),
        Value::Text(text) => Ok(Some(text)),
        _ => Err(Reason::Field),
    }
}
